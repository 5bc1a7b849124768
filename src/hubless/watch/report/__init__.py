"""The report: one page of what runs came to."""
