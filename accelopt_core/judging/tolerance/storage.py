"""What storing a result in a type narrower than float32 does to it, and when it may be stored so."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Storage:
    """What storing results in types narrower than float32 may do to an element, beside what arithmetic does."""

    relative: float = 0.0
    """Of the element's value."""
    absolute: float = 0.0
    """Where it is denormal in such a type."""

    def __add__(self, other: Storage) -> Storage:
        return Storage(self.relative + other.relative, self.absolute + other.absolute)


WIDE = Storage()
"""Float32's own rounding is in the noise."""
STORAGE = {
    "bfloat16": Storage(2.0**-8, 2.0**-134),
    "float16": Storage(2.0**-11, 2.0**-25),
    "float8_e4m3": Storage(2.0**-4, 2.0**-10),
    "float8_e4m3fn": Storage(2.0**-4, 2.0**-10),
    "float8_e5m2": Storage(2.0**-3, 2.0**-17),
}
"""By NumPy's name: unit roundoff, and half of the smallest number (`ml_dtypes.finfo`)."""


def storage_of(got: str, expected: str, arguments: Collection[str]) -> Storage:
    """How far apart one exact value lies once the kernel stored it as `got` and the reference as `expected`.

    The kernel may store what the reference stores, or a type no narrower than its narrowest argument (`arguments`: the
    dtypes of all): any other rounding counts as an error. Types are named as NumPy does.
    """
    theirs = STORAGE.get(expected, WIDE)
    narrowest = max((STORAGE.get(name, WIDE).relative for name in arguments), default=0.0)
    mine = STORAGE.get(got, WIDE)
    return theirs + (mine if mine.relative <= max(theirs.relative, narrowest) else WIDE)
