"""Who trains next, drawn by everybody alike."""
