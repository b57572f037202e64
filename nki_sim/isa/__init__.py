"""Semantics and constraints of the instruction set, one file per engine."""
