"""How good a list of predictions is: errors, and what a search that trusts them would choose.

Pure arithmetic on pairs of (predicted, measured); times in any one unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from ka_extensions.residuals import Pair, kendall_tau_b, regret_percent


def error_percent(pair: Pair) -> float:
    """Without its sign."""
    return 100 * abs(pair[0] / pair[1] - 1)


def percentile(values: Iterable[float], fraction: float) -> float:
    """Linear between the neighbours. Raises ValueError where there are no values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("percentile: no values")
    at = fraction * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def pairs_in_order(rows: Sequence[Pair], threshold: float) -> tuple[int, int]:
    """(in the right order, of how many): those whose times differ by more than `threshold`, a fraction of the shorter.

    Equal predictions count as wrong: a search could not tell them apart.
    """
    right = total = 0
    for (p, m), (q, n) in combinations(rows, 2):
        if abs(m - n) > threshold * min(m, n):
            total += 1
            right += (p - q) * (m - n) > 0
    return right, total


@dataclass(frozen=True)
class Ranking:
    """Of rows that were measured together."""

    right: int
    """Pairs of clearly different rows that the model puts in the right order."""
    pairs: int
    tau: float | None
    top_1_percent: float
    top_3_percent: float


def ranking(rows: Sequence[Pair], threshold: float, best: float | None = None) -> Ranking | None:
    """None where there are fewer than two rows; `threshold` as in `pairs_in_order`, `best` as in `regret_percent`."""
    if len(rows) < 2:
        return None
    right, pairs = pairs_in_order(rows, threshold)
    return Ranking(right, pairs, kendall_tau_b(rows), regret_percent(rows, 1, best), regret_percent(rows, 3, best))
