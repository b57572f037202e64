"""Which inputs a kernel is run on: draws, distributions, domains."""
