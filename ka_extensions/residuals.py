"""How far a device's times lie from predictions, learned as they come: what corrects the next predictions.

A prediction is off in its own way for each kind of kernel, by what binds it. The correction of a kind is the median of
its log ratios, drawn towards that of all kinds, and this towards none, the fewer kernels were measured: what was seen
once is believed in part, and a kind that was never seen is taken to be as far off as the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

PRIOR = 1.0
"""Measured kernels that the belief `nothing is off` counts as."""


@dataclass(frozen=True)
class Residual:
    """Of one kernel that was predicted and measured."""

    kind: str
    """What binds it, as the prediction has it."""
    log_ratio: float
    """Natural logarithm of measured over predicted."""

    @classmethod
    def of(cls, kind: str, predicted: float, measured: float) -> Residual:
        """Times in any one unit. Raises ValueError where one of them is not above 0."""
        return cls(kind, math.log(measured / predicted))


class Correction:
    """Robust: one kernel that is far off, whatever the reason, moves a median little."""

    def __init__(self, residuals: Iterable[Residual] = ()) -> None:
        by_kind: dict[str, list[float]] = {}
        for each in residuals:
            by_kind.setdefault(each.kind, []).append(each.log_ratio)
        self.kernels = sum(map(len, by_kind.values()))
        """That it rests on."""
        self._of_all = _drawn([ratio for ratios in by_kind.values() for ratio in ratios], 0.0)
        self._by_kind = {kind: _drawn(ratios, self._of_all) for kind, ratios in by_kind.items()}

    def factor(self, kind: str) -> float:
        """What to multiply a prediction of this kind with."""
        return math.exp(self._by_kind.get(kind, self._of_all))


def _drawn(ratios: list[float], towards: float) -> float:
    if not ratios:
        return towards
    share = len(ratios) / (len(ratios) + PRIOR)
    return share * statistics.median(ratios) + (1 - share) * towards


Pair = tuple[float, float]
"""Predicted, measured."""


def kendall_tau_b(rows: Sequence[Pair]) -> float | None:
    """From -1 to 1; None where all predictions or all times are equal, or with fewer than two rows."""
    agreement = apart = times_apart = 0
    for (p, m), (q, n) in combinations(rows, 2):
        agreement += _sign(p - q) * _sign(m - n)
        apart += p != q
        times_apart += m != n
    if not apart or not times_apart:
        return None
    return float(agreement / (apart * times_apart) ** 0.5)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def regret_percent(rows: Sequence[Pair], first: int, best: float | None = None) -> float:
    """What trying the `first` best predictions costs against the best time there is.

    best: of all that ran, also where the model refused it; by default the best of `rows`. Of equal predictions the
    slower is taken. Raises ValueError where there are no rows.
    """
    if not rows:
        raise ValueError("regret: no rows")
    chosen = sorted(rows, key=lambda pair: (pair[0], -pair[1]))[:first]
    best = min(m for _, m in rows) if best is None else best
    return 100 * (min(m for _, m in chosen) / best - 1)
