"""Privacy: what clients may say about their data, and what saying it costs them."""
