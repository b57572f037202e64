"""The languages that kernels may be written in: one room each, one line each in the registry."""
