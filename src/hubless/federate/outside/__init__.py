"""Looking at a federation, or a store, without taking part."""
