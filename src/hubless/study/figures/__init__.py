"""What studies come to, as numbers, tables and pictures."""
