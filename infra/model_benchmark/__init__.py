"""Kernels inside a whole model: put into its checkout on a host, run by the model's own harness, scored, put back."""
