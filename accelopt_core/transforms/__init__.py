"""The built-in catalogue: source transformations that need no language model."""
