"""What trains a cohort: on this machine, in processes of it, or on a Ray cluster."""
