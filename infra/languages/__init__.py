"""What evaluates kernels of each language: one file each, one line each in the registry. Shipped."""
