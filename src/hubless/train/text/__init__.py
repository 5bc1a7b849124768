"""Language models: their vocabulary, what is hidden from them, and their tasks."""
