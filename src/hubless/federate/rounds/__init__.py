"""Synchronous rounds: their plans, their slices, and a member that takes part."""
