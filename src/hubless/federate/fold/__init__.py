"""Folding updates into one: where they are read from, and what their sum steps from."""
