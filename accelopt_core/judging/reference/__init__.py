"""What a kernel is held against: its reference in float64, and rounded otherwise."""
