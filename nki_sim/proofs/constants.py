"""A kernel's constants as exact fractions: the simplest one that float32 rounds to the same number.

0.1, float32(0.1) and 1 - 0.9 in Python are 1/10; 1/768 times 768 is 1. Two float32 numbers never share a fraction, so a
changed constant stays a changed one.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np

BEYOND = 1e30
"""Constants at or above this in magnitude stand for infinity: where a running maximum begins, what a mask hides."""

_EXACT = 1 << 24
"""Integers up to this are themselves in float32."""


@lru_cache(maxsize=4096)
def fraction(value: float) -> Fraction:
    """Of a finite number. The engines read every immediate as float32 (`nki_sim.isa`)."""
    if value == int(value) and abs(value) <= _EXACT:
        return Fraction(int(value))
    narrow = np.float32(value)
    if narrow == 0:
        return Fraction(0)
    below, above = (Fraction(float(np.nextafter(narrow, np.float32(end)))) for end in (-np.inf, np.inf))
    middle = Fraction(float(narrow))
    found = _simplest((abs(middle) + min(abs(below), abs(above))) / 2, (abs(middle) + max(abs(below), abs(above))) / 2)
    return found if middle > 0 else -found


def _simplest(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of the smallest denominator in [low, high], both positive: the first of its continued fractions."""
    whole = low.numerator // low.denominator
    if whole == low:
        return low
    if whole + 1 <= high:
        return Fraction(whole + 1)
    return whole + 1 / _simplest(1 / (high - whole), 1 / (low - whole))
