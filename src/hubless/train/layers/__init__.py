"""Layers in the form in which many clients' weights run at once, and the kernels for it."""
