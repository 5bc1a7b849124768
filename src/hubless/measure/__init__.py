"""Measures: how good predictions are, beyond a mean over examples."""
