"""What a rule reports."""

from __future__ import annotations

from dataclasses import dataclass

from nki_sim import VERSIONS as VERSIONS

LAST_PARSED = "0.6"
"""The last one that reads a part of Python; from 0.7 a kernel is run as Python and its calls are recorded."""
LATEST = VERSIONS[-1]
COMMON = VERSIONS[1:]
"""What a kernel is to be valid in where nobody says what compiles it; 0.2 lacks too much."""


@dataclass(frozen=True)
class Finding:
    rule: str
    line: int
    message: str
    hint: str
    """What to write instead."""
    severity: str = "error"
    """"error": the compiler rejects it; "warning": it is deprecated, ignored, or slower than it looks; "hint": nothing
    is wrong with it, and this version has a shorter way."""
