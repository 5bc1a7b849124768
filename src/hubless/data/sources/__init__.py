"""Sources: public datasets, one file each, read from a folder that the user names."""
