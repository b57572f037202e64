"""Judging one kernel: compiled, verified against the reference, timed, and held against what a machine can do."""
