"""The interval of a difference: how far apart two predictions must be before their order is believed.

Two kernels of one task share most of what the model gets wrong of either, so that their difference is far surer than
the latencies (`intervals.py`) are. Whoever chooses among kernels by prediction takes what lies closer for a tie. The
number is data, `ties.json` beside this file: `benchmarks/timing_accuracy.py --quick --write-ties` makes it from rows of
trn2 that one would choose among, those near their grid's fastest (`benchmarks/timing_ties.py` says how). For the other
machines, of which no row was measured, the same number is a choice.

Among ties the simpler kernel comes first: the one of fewer steps, then the one of fewer lines. A kernel that gains no
more than a tie is no better than the one it was made from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

LEAST_GAIN = 0.01
"""Of the latency: the divergence guard takes less than this for noise, so it is not worth a round."""


@dataclass(frozen=True)
class Tie:
    within: float
    """Of the slower kernel's predicted latency: from this difference on, `level` of the pairs are in order."""
    level: float
    pairs: int
    """That it was found from."""
    families: int
    """Of kernels that were measured alike; each weighs the same."""
    machine: str
    """That the rows were measured on."""
    source: str


def load(path: Path) -> Tie:
    """Raises ValueError, naming the file, where it is missing or says something else."""
    try:
        found = Tie(**json.loads(path.read_text(encoding="utf-8")))
        if not 0 < found.within < 1:
            raise ValueError(f"within {found.within} is no fraction")
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"{path}: not the interval of a difference ({type(error).__name__}: {error}); "
            "python benchmarks/timing_accuracy.py --quick --write-ties makes it"
        ) from error
    return found


def dump(tie: Tie, path: Path) -> None:
    """As `load` reads it."""
    path.write_text(json.dumps(asdict(tie), indent=2) + "\n", encoding="utf-8")


SHIPPED = Path(__file__).with_name("ties.json")


@cache
def shipped() -> Tie:
    """What comes with the simulator; read when first wanted, so that it can be made anew without it."""
    return load(SHIPPED)


def worth_a_round(tie: float) -> float:
    """The least predicted gain, of the latency. `tie`: from which difference on predictions are in the right order."""
    return max(LEAST_GAIN, tie)


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
