"""Federating for real: members that meet in nothing but a folder or bucket."""
