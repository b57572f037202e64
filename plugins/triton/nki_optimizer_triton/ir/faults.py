"""What an executed kernel did wrong, or asks too much of."""

from __future__ import annotations


class KernelFault(Exception):
    """A kernel does what a GPU does not allow, or leaves to chance: where, and what."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class NotHere(Exception):
    """It can only be executed on a GPU: the message says what, and how much."""
