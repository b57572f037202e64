"""Registers, what is computed in them, and what cores do together."""
