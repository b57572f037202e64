"""Shapes between those of a set: near enough that a guard one constant too wide would take them for one of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from accelopt_core.dispatch.weights import WeightedShape, in_order_of_size
from accelopt_core.task import ShapePreset

_Values = tuple[tuple[str, int], ...]


def shapes_between(shapes: Sequence[WeightedShape]) -> tuple[ShapePreset, ...]:
    """None of the set, and none larger than its largest in any constant; those that differ least from one of the set
    come first, turn by turn for each of them. A kernel or its reference need not be made for all of them."""
    known = {shape.preset.values for shape in shapes}
    ordered = in_order_of_size(shapes)
    ways = [list(_near(shape, ordered)) for shape in ordered]
    ways.append([_middle(one, other) for one, other in zip(ordered, ordered[1:])])
    found: dict[_Values, None] = {}
    for turn in range(max(map(len, ways))):
        for some in ways:
            if turn < len(some) and some[turn] not in known:
                found.setdefault(some[turn])
    return tuple(ShapePreset(_name(values), values) for values in found)


def _near(shape: WeightedShape, others: Sequence[WeightedShape]) -> Iterator[_Values]:
    """With one constant as another of the set has it, the nearest value first; where all have the same, with half."""
    for place, (name, value) in enumerate(shape.preset.values):
        values = sorted({dict(each.preset.values)[name] for each in others} - {value}, key=lambda v: abs(v - value))
        for changed in values or ([value // 2] if value > 1 and value % 2 == 0 else []):
            yield (*shape.preset.values[:place], (name, changed), *shape.preset.values[place + 1 :])


def _middle(one: WeightedShape, other: WeightedShape) -> _Values:
    """Halfway in every constant, and divided by what divides both."""
    ends = dict(other.preset.values)
    made = []
    for name, value in one.preset.values:
        step = math.gcd(value, ends[name])
        made.append((name, max(step, (value + ends[name]) // 2 // step * step)))
    return tuple(made)


def _name(values: _Values) -> str:
    return "between-" + "-".join(f"{name}{value}" for name, value in values)
