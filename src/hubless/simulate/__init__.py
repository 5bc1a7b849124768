"""Simulating many clients on one machine, one GPU or a Ray cluster."""
