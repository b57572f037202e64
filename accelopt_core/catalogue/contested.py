"""Prices of kernels that rest on no contested fact of the machine: what the catalogue plans by first.

What gains only if a contested fact holds waits until nothing else gains: the best kernel shall rest on none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from accelopt_core.catalogue.rewrites import Predict
from accelopt_core.evaluation import Measured

RestsOn = Callable[[str], tuple[str, ...]]
"""Of a source that was priced: the contested facts that its price rests on."""


def nothing_contested(source: str) -> tuple[str, ...]:
    """Of a machine all whose facts are settled."""
    return ()


class WithoutContested:
    """A `Predict` that has no price for what rests on contested facts other than the allowed ones."""

    def __init__(self, predict: Predict, rests_on: RestsOn) -> None:
        self._predict = predict
        self._rests_on = rests_on
        self._allowed: frozenset[str] = frozenset()
        self.left_out = False
        """Whether it ever kept a price back."""

    def allow(self, *results: Measured) -> None:
        """What these kernels rest on, from now on."""
        self._allowed = frozenset(what for result in results for what in result.contested)

    def __call__(self, sources: Sequence[str], limit_s: float = math.inf) -> dict[str, float | None]:
        found = dict(self._predict(sources, limit_s))
        for source, us in found.items():
            if us is not None and not self._allowed.issuperset(self._rests_on(source)):
                found[source], self.left_out = None, True
        return found
