"""Text that a candidate had a hand in, made harmless for whoever reads it next: a model, a terminal, a log.

What a kernel calls its tensors comes back in error messages, and its text in prompts: neither may end the quotation it
stands in, steer a terminal, or hide from whoever looks.
"""

from __future__ import annotations

import re
import unicodedata

_INVISIBLE = {"Cc", "Cf", "Co", "Cs", "Cn"}
"""Categories of Unicode: control characters, marks of direction and joining, private ones, halves, unassigned ones."""


def printable(text: str, longest: int) -> str:
    """Without what cannot be seen but line ends and tabs; at most that many characters, and what is missing is said."""
    bounded = text[: 2 * longest]
    if not bounded.isprintable():
        lines = re.split(r"\r\n|[\n\r\v\f\x85\u2028\u2029]", bounded)
        bounded = "\n".join(
            "".join(c for c in line if c == "\t" or unicodedata.category(c) not in _INVISIBLE) for line in lines
        )
    if len(bounded) <= longest and len(text) <= 2 * longest:
        return bounded
    return f"{bounded[:longest]} […]"


def one_line(text: str, longest: int) -> str:
    return " ".join(printable(text, longest).split())


def inline(text: str, longest: int) -> str:
    """In one line, between backticks, of which it has none itself."""
    return f"`{one_line(text, longest).replace('`', chr(39))}`"


def fenced(text: str, language: str = "") -> str:
    """As a block that nothing in it ends: the fence is longer than any row of backticks or tildes inside."""
    shown = printable(text, len(text))
    longest = max((len(row) for row in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{shown}\n{fence}"
