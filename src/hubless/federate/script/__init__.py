"""A training script that knows nothing of a federation, watched from outside."""
