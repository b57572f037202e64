"""Triton's IR (TTIR) as data: read from its text, held to a closed list of operations, executed on arrays."""
