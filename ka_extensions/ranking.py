"""How good a list of predictions is at choosing: whether their order is the measured one, and what trusting it costs.

Pure arithmetic on pairs of (predicted, measured); times in any one unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

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
