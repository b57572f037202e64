"""A program run on arrays."""
