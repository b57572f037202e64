"""What a proof can say, and why one stops."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Finding(Enum):
    HELD = "held"
    REFUTED = "refuted"
    NOT_PROVABLE = "not provable"


@dataclass(frozen=True)
class Proof:
    """One property of a program, for all inputs of its shape."""

    finding: Finding
    reason: str
    """One line: what holds, where it first does not, or what stood in between."""


class NotProvable(Exception):
    """The program does something that the model does not know: the message names it and its line."""
