"""Which of several predicted gains to take first: those that the predictions cannot tell apart are ties.

Among ties the simpler kernel comes first: the one of fewer steps, then the one of fewer lines. A kernel that gains no
more than a tie is no better than the one it was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

LEAST_GAIN = 0.01
"""Of the latency: the divergence guard takes less than this for noise, so it is not worth a round."""


def worth_a_round(tie: float) -> float:
    """The least predicted gain, of the latency. `tie`: from which difference on predictions are in the right order."""
    return max(LEAST_GAIN, tie)


def lines_of_code(source: str) -> int:
    """Without blank lines and comments."""
    return sum(1 for line in source.splitlines() if (text := line.strip()) and not text.startswith("#"))


def best_first(items: Sequence[T], gain: Callable[[T], float], tie: float, simpler: Callable[[T], Any]) -> list[T]:
    """By gain; but of all that come within `tie` (in the unit of the gains) of the greatest, the least `simpler`.

    Of equally simple ones the greater gain, then the earlier in `items`. Then the same again of the rest.
    """
    left, order = sorted(items, key=lambda item: -gain(item)), []
    while left:
        tied = [item for item in left if gain(left[0]) - gain(item) <= tie]
        chosen = min(tied, key=simpler)
        order.append(chosen)
        left.remove(chosen)
    return order
