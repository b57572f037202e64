"""Kernels of Beta 1, rewritten statement by statement."""
