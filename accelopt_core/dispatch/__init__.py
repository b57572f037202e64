"""One kernel for several shapes: which variants are worth keeping, and one file that chooses among them by shape."""
