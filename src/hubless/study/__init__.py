"""Studies: the papers' experiments, each one resumable command."""
