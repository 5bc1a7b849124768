"""Who trains next: rosters and selectors."""
