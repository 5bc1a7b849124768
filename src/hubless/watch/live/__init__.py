"""Views of a run while it goes on: in the terminal, and on a page."""
