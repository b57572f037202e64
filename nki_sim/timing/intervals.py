"""How sure a simulated latency is: the interval that four of five kernels like it lie in, and what that rests on.

The interval is the predicted latency times a spread: how measured kernels of the same kind, by what binds them, lay
around their predictions. It is widened where instructions are priced by guesses that no row confirms. The spreads are
data, `intervals.json` beside this file: `benchmarks/timing_accuracy.py --write-intervals` makes it, and predicts every
row with constants that were fitted without its family.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from nki_sim.machine import GUESSED, Machine
from nki_sim.timing.cost import Cost, cost
from nki_sim.timing.schedule import Timeline

SPILLING, SMALL, PRODUCTS, TRANSFERS, MIXED = "spilling", "small", "products", "transfers", "mixed"
KINDS: Mapping[str, str] = {
    SPILLING: "kernels that spill",
    SMALL: "kernels of less than 100 us",
    PRODUCTS: "kernels bound by products",
    TRANSFERS: "kernels bound by transfers",
    MIXED: "kernels bound by no one thing",
}
"""What binds a kernel, and its name. The first that fits counts."""
EVERY = "every"
"""All kinds together, for one that too few rows were measured of."""

_SMALL_US = 100
_PRODUCTS_SHARE, _TRANSFERS_SHARE = 0.85, 0.7
"""Of the latency, that TensorE or the busiest DMA engine or queue is at work."""

_PRIOR_FACTOR = 2.0
"""How far a prior may be off, either way: our choice. The published cycles of tensor_tensor were."""
_UNCALIBRATED = (0.5, 2.0)
"""On a machine without measured rows, likewise a choice."""
_WORTH_SAYING = 0.01
"""Share of the latency below which a prior is not named."""
_NAMED = 3
_ENGINES = {"tensor": "Tensor", "vector": "Vector", "scalar": "Scalar", "gpsimd": "GpSimd", "sync": "Sync"}


@dataclass(frozen=True)
class Interval:
    """Where the device's latency lies, in `level` of the cases."""

    low_us: float
    high_us: float
    level: float = 0.8


@dataclass(frozen=True)
class Prediction:
    latency_us: float
    interval: Interval
    rests_on: tuple[str, ...]
    """One line each, e.g. `13 % of this time is a guess that no measurement checks: GpSimd tensor_tensor`."""


@dataclass(frozen=True)
class Spread:
    """Of measured over predicted latency: quantiles, so that `level` of the rows lie between them."""

    low: float
    high: float
    rows: int
    families: int
    """Of kernels that were measured alike; each weighs the same."""


@dataclass(frozen=True)
class Spreads:
    machine: str
    """That the rows were measured on."""
    level: float
    source: str
    kinds: Mapping[str, Spread]
    """By name in KINDS, and EVERY; a kind of too few rows is left out."""


@dataclass(frozen=True)
class Basis:
    """What the width of an interval depends on."""

    kind: str
    """Of KINDS."""
    prior_share: float
    """Of the latency, that the engine which depends on priors most is busy by them; at most 1."""
    priors: tuple[str, ...]
    """Engine and opcode, e.g. `GpSimd tensor_tensor`; the most time first."""


def load(path: Path) -> Spreads:
    """Raises ValueError, naming the file, where it is missing or says something else than spreads."""
    again = "python benchmarks/timing_accuracy.py --write-intervals makes it"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        kinds = {name: Spread(**spread) for name, spread in told["kinds"].items()}
        found = Spreads(told["machine"], told["level"], told["source"], kinds)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path}: not the spreads of measured rows ({type(error).__name__}: {error}); {again}"
        ) from error
    if EVERY not in kinds or not set(kinds) <= {*KINDS, EVERY}:
        raise ValueError(f"{path}: kinds {sorted(kinds)}, not {EVERY} and some of {sorted(KINDS)}; {again}")
    return found


def dump(spreads: Spreads, path: Path) -> None:
    """As `load` reads it."""
    path.write_text(json.dumps(asdict(spreads), indent=2) + "\n", encoding="utf-8")


SHIPPED = Path(__file__).with_name("intervals.json")


@cache
def shipped() -> Spreads:
    """What comes with the simulator; read when first wanted, so that it can be made anew without it."""
    return load(SHIPPED)


def interval(timeline: Timeline, summary: Mapping[str, float], spreads: Spreads | None = None) -> Prediction:
    """summary: the profiler's fields of the timeline (`profile.profile`). By default with shipped spreads.

    Raises ValueError where those cannot be read.
    """
    spreads = shipped() if spreads is None else spreads
    found = basis(timeline, summary)
    low, high = factors(found, timeline.machine, spreads)
    within = Interval(timeline.latency_us * low, timeline.latency_us * high, spreads.level)
    return Prediction(
        timeline.latency_us, within, (_rests_on_rows(found, timeline.machine, spreads), *_rests_on_priors(found))
    )


def basis(timeline: Timeline, summary: Mapping[str, float]) -> Basis:
    share, names = priced_by_priors(timeline)
    return Basis(kind(timeline, summary), share, names)


def factors(found: Basis, machine: Machine, spreads: Spreads) -> tuple[float, float]:
    """What to multiply a latency with for the low and the high end of its interval."""
    if machine.name != spreads.machine:
        return _UNCALIBRATED
    spread = spreads.kinds.get(found.kind, spreads.kinds[EVERY])
    share = found.prior_share
    return spread.low * (1 - share + share / _PRIOR_FACTOR), spread.high * (1 - share + share * _PRIOR_FACTOR)


def kind(timeline: Timeline, summary: Mapping[str, float]) -> str:
    """One of KINDS."""
    latency = timeline.latency_us
    if summary["spill_save_bytes"] + summary["spill_reload_bytes"] > 0:
        return SPILLING
    if latency < _SMALL_US:
        return SMALL
    if summary["tensor_engine_active_time_percent"] >= _PRODUCTS_SHARE:
        return PRODUCTS
    if max(us for name, us in timeline.resource_us.items() if name.startswith("dma")) >= _TRANSFERS_SHARE * latency:
        return TRANSFERS
    return MIXED


def priced_by_priors(timeline: Timeline) -> tuple[float, tuple[str, ...]]:
    """(share, names) as in Basis: what would change were every prior twice as large."""
    machine, latency_ns = timeline.machine, timeline.latency_us * 1e3
    if latency_ns <= 0:
        return 0.0, ()
    doubled = _with_priors_doubled(machine)
    counts = np.bincount(timeline.program.template_ids, minlength=len(timeline.costs)).tolist()
    by_engine: dict[str, float] = {}
    by_name: dict[str, float] = {}
    for template, price, count in zip(timeline.program.templates, timeline.costs, counts):
        engine = "dma" if price.transfer is not None else price.resource
        guessed_ns = abs(_busy_ns(cost(template, doubled)) - _busy_ns(price)) * count
        if guessed_ns:
            name = f"{_ENGINES.get(engine, 'DMA')} {template.opcode}"
            by_engine[engine] = by_engine.get(engine, 0.0) + guessed_ns
            by_name[name] = by_name.get(name, 0.0) + guessed_ns
    share = min(1.0, max(by_engine.values(), default=0.0) / latency_ns)
    named = sorted(
        (name for name, ns in by_name.items() if ns >= _WORTH_SAYING * latency_ns), key=lambda n: -by_name[n]
    )
    return share, tuple(named[:_NAMED])


def _busy_ns(price: Cost) -> float:
    return price.transfer.engine_ns if price.transfer is not None else price.busy_ns


def _with_priors_doubled(machine: Machine) -> Machine:
    numbers = {
        name: 2 * getattr(machine, name)
        for name, source in machine.sources.items()
        if source.confidence in GUESSED and type(getattr(machine, name)) in (int, float)
    }
    rates = {
        name: replace(rate, per_element=2 * rate.per_element, fixed=2 * rate.fixed, minimum=2 * rate.minimum)
        if rate.source.confidence in GUESSED
        else rate
        for name, rate in machine.rates.items()
    }
    return replace(machine, **numbers, rates=rates)


def _rests_on_rows(found: Basis, machine: Machine, spreads: Spreads) -> str:
    if machine.name != spreads.machine:
        low, high = _UNCALIBRATED
        return f"{low:g} to {high:g} times the latency, a choice: no row was measured on {machine.name}"
    spread = spreads.kinds.get(found.kind)
    if spread is None:
        spread = spreads.kinds[EVERY]
        too_few = KINDS[found.kind]
        return f"all {spread.rows} measured kernels, of {spread.families} families (too few {too_few})"
    return f"{spread.rows} measured {KINDS[found.kind]}, of {spread.families} families"


def _rests_on_priors(found: Basis) -> Sequence[str]:
    if found.prior_share < _WORTH_SAYING:
        return ()
    names = ", ".join(found.priors) or "several instructions"
    return (f"{100 * found.prior_share:.0f} % of this time is a guess that no measurement checks: {names}",)
