"""Stands in for `neuronxcc` where it is not installed, so that `neuronxcc.nki.typing` can be imported."""
