"""What engines compute with: types, operators, activation functions, accumulators."""
