"""The interval of a difference: how far apart two predictions must be before their order is believed.

Two kernels of one task share most of what the model gets wrong of either, so that their difference is far surer than
the latencies (`intervals.py`) are. Whoever chooses among kernels by prediction takes what lies closer for a tie. The
number is data, `ties.json` beside this file: `benchmarks/timing_accuracy.py --quick --write-ties` makes it from rows of
trn2 that one would choose among (`benchmarks/timing_ties.py` says how). For the other machines, of which no row was
measured, the same number is a choice.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path


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
