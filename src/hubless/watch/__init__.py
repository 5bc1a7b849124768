"""Looking on: a run in the terminal, on a page, in a report, or in the tracker of your choice."""
