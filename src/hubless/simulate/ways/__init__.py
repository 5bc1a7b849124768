"""Ways to train a cohort: plainly, in lanes, in one step, in dual coordinates."""
