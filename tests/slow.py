"""Of many cases of one test, those that run each time; the others are slow tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(*names: str, of: Iterable[str]) -> list[Any]:
    """For `parametrize`: every name of `of`, marked slow but for `names`."""
    every = list(of)
    assert set(names) <= set(every), f"no such case: {', '.join(set(names) - set(every))}"
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in every]


def without(*names: str, of: Iterable[str]) -> list[Any]:
    """For `parametrize`: every name of `of`, those of `names` marked slow."""
    every = list(of)
    assert set(names) <= set(every), f"no such case: {', '.join(set(names) - set(every))}"
    return [pytest.param(name, marks=pytest.mark.slow) if name in names else name for name in every]
