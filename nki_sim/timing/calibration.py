"""A machine as one device showed it: some of its constants replaced, with where the new ones come from.

A constant is named by the field of `Machine` that holds it, or by a rate's: `dma_start_ns`,
`rates.tensor_tensor.per_element`. Which constants a device can decide, and how, is not this file's business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Protocol

from nki_sim.machine import Machine, Rate, Source, machine

_RATES = "rates"


class Calibration(Protocol):
    """Constants of one machine, measured by its user."""

    @property
    def machine(self) -> str:
        """A key of `nki_sim.machine.MACHINES`."""
        ...

    @property
    def line(self) -> str:
        """What `Machine.calibration` says of it: how far to trust a latency."""
        ...

    @property
    def label(self) -> str:
        """Beside the name of what simulates."""
        ...

    @property
    def constants(self) -> tuple[tuple[str, float], ...]: ...


def calibrated_machine(name: str, calibration: Calibration | None) -> Machine:
    """The machine of that name, as shipped or as calibrated.

    Raises KeyError for an unknown machine or constant, and ValueError for a calibration of another machine.
    """
    core = machine(name)
    if calibration is None:
        return core
    if calibration.machine != name:
        raise ValueError(f"a calibration of {calibration.machine} says nothing about {name}")
    changed = with_constants(core, dict(calibration.constants))
    said = f"measured by its user: {calibration.label}"
    source, settled = Source(said, "fitted"), Source(said, "measured")
    holders = [constant.partition(".") for constant, _ in calibration.constants]
    changed_fields = {holder for holder, *_ in holders if holder != _RATES}
    opcodes = {rest.rpartition(".")[0] for holder, _, rest in holders if holder == _RATES}
    return replace(
        changed,
        calibration=calibration.line,
        rates={name: replace(rate, source=source) if name in opcodes else rate for name, rate in changed.rates.items()},
        sources={
            name: shipped if name not in changed_fields else settled if shipped.confidence == "contested" else source
            for name, shipped in core.sources.items()
        },
    )


def constant_of(core: Machine, name: str) -> float:
    """Raises KeyError for what is no number of a machine."""
    holder, _, rest = name.partition(".")
    if holder == _RATES:
        opcode, _, part = rest.rpartition(".")
        value = getattr(core.rates[opcode], part, None) if opcode in core.rates else None
    else:
        value = getattr(core, name) if name in _NUMBERS else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise KeyError(f"{name} is no number of a machine")
    return value


def with_constants(core: Machine, values: Mapping[str, float]) -> Machine:
    """A copy with these constants; whole numbers stay whole. Raises KeyError as `constant_of`, ValueError for NaN."""
    plain: dict[str, Any] = {}
    rates = dict(core.rates)
    for name, value in values.items():
        constant_of(core, name)
        if not math.isfinite(value):
            raise ValueError(f"{name} = {value} is no constant")
        after = round(value) if is_whole(name) else float(value)
        if name.partition(".")[0] == _RATES:
            opcode, _, part = name.partition(".")[2].rpartition(".")
            rates[opcode] = replace(rates[opcode], **{part: after})  # type: ignore[arg-type]  # checked by name
        else:
            plain[name] = after
    if rates != core.rates:
        plain[_RATES] = rates
    return replace(core, **plain)


def is_whole(name: str) -> bool:
    """Whether it counts something: a whole number it stays."""
    return (_RATE_PARTS if name.partition(".")[0] == _RATES else _NUMBERS)[name.rpartition(".")[2]] == "int"


_NUMBERS = {field.name: field.type for field in fields(Machine) if field.type in ("float", "int")}
_RATE_PARTS = {field.name: field.type for field in fields(Rate)}
