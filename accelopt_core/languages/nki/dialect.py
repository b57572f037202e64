"""What of NKI a kernel may be written in, as prompts teach it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    versions: str = "NKI 0.3 to 0.7"
    """All of them."""
    any_python: bool = False
    """Do they run the kernel as Python, instead of reading a part of it?"""
