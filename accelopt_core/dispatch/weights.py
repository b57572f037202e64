"""How much each shape of a set counts: how often it is called, or its share of a step's time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import fsum

from accelopt_core.task import ShapePreset


class Counting(str, Enum):
    """What the weights of a set are."""

    CALLS = "calls"
    """How often a step calls the kernel at that shape; or how often compared with the other shapes."""
    SHARE = "share"
    """Of a step's time, what the input kernel takes at that shape now."""


@dataclass(frozen=True)
class WeightedShape:
    preset: ShapePreset
    weight: float = 1.0
    """Calls, or a share, as its set counts."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"shape {self.preset.name}: its weight {self.weight} is no positive number")

    @property
    def name(self) -> str:
        return self.preset.name


@dataclass(frozen=True)
class ShapeSet:
    """Shapes that one kernel is optimized for together."""

    shapes: tuple[WeightedShape, ...]
    counting: Counting = Counting.CALLS

    def __post_init__(self) -> None:
        names = [shape.name for shape in self.shapes]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a set needs shapes, each under a name of its own: {', '.join(names) or 'none'}")
        if self.counting is Counting.SHARE and sum(shape.weight for shape in self.shapes) > 1 + 1e-6:
            raise ValueError("the shares are more than a whole step: each is a fraction of its time, as 0.25")

    def calls(self, input_us: Mapping[str, float]) -> dict[str, float]:
        """By shape, how often its latency counts. `input_us`: the input kernel's latency by shape, of those that have
        one; the others are left out."""
        there = [shape for shape in self.shapes if shape.name in input_us]
        if self.counting is Counting.CALLS:
            return {shape.name: shape.weight for shape in there}
        return {shape.name: shape.weight / input_us[shape.name] for shape in there}


def weighted_us(calls: Mapping[str, float], latency_us: Mapping[str, float]) -> float:
    """µs of all calls together."""
    return fsum(count * latency_us[name] for name, count in calls.items())


def names_of(shapes: Iterable[WeightedShape]) -> str:
    return ", ".join(shape.name for shape in shapes)


def in_order_of_size(shapes: Sequence[WeightedShape]) -> tuple[WeightedShape, ...]:
    """The smallest first, by the product of its constants."""

    def size(shape: WeightedShape) -> int:
        product = 1
        for _, value in shape.preset.values:
            product *= value
        return product

    return tuple(sorted(shapes, key=size))
