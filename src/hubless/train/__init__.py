"""What a client does: a task (model, loss, metrics) and a recipe (how to train on its data)."""
