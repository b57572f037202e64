"""Triton, for NVIDIA GPUs."""
