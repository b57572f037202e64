"""Domains of inputs: which values the judge may put in place of those that a reference draws.

A kernel that never reads an input is right as long as that input never changes. What the reference's draws leave as it
is (a mask of ones, lengths of N, a state of zeros), and integers, which no other distribution changes, are therefore
replaced by other values of their domain. A domain is declared (`Task.presets[].domains`) or found from several of the
reference's own draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from accelopt_core.task import Domain


class Kind(str, Enum):
    """What an input is, as far as it can be moved."""

    FIXED = "fixed"
    """Declared so."""
    INTEGERS = "integers"
    TWO_VALUES = "two values"
    """Booleans and masks, whatever their type: 0 and 1, 0 and -inf."""
    CONSTANT = "constant"
    """A floating array of one value."""
    TABLE = "table"
    """A floating array that is the same in every draw."""
    RANGE = "range"
    """A floating array with declared ends."""


@dataclass(frozen=True)
class Movement:
    """How one input is moved."""

    kind: Kind
    low: float = 0.0
    high: float = 0.0
    """Of INTEGERS and RANGE the ends, of TWO_VALUES both values, of a CONSTANT the value, twice."""
    ascending: bool = False
    """Integers are so along the last axis in every draw, and stay so."""
    distinct: bool = False
    """Likewise."""
    axis: tuple[int, int] | None = None
    """Of indices, the axis that they go into: number of the input, number of the axis."""
    declared: bool = False

    @property
    def moves(self) -> bool:
        return self.kind is not Kind.FIXED and not (self.kind in _WITH_ENDS and self.low == self.high)

    def describe(self) -> str:
        """For people, e.g. `from 1 to 512`."""
        found = "" if self.declared else ", as the reference's draws are"
        if self.kind is Kind.FIXED:
            return "is never changed, as declared"
        if self.kind is Kind.CONSTANT:
            return f"is {self.low:g} in every draw, and random here"
        if self.kind is Kind.TABLE:
            return "is the same in every draw, and random here"
        if self.kind is Kind.TWO_VALUES:
            return f"is {self.low:g} or {self.high:g}{found}"
        return f"goes from {self.low:g} to {self.high:g}{found}"


_WITH_ENDS = (Kind.INTEGERS, Kind.RANGE, Kind.TWO_VALUES)

_SAMPLE = 4096
"""Elements that tell most arrays of many values from those of two."""


def is_floating(value: Any) -> bool:
    """Also for bfloat16 and the 8-bit types, which NumPy knows from ml_dtypes and calls void."""
    return isinstance(value, np.ndarray) and value.dtype.name.startswith(("float", "bfloat"))


def movements(draws: Sequence[Sequence[Any]], declared: Mapping[int, Domain]) -> tuple[Movement | None, ...]:
    """By input, from several draws at one shape; None for what every draw changes, and for what is no array."""
    return tuple(_movement(values, declared.get(number)) for number, values in enumerate(zip(*draws)))


def _movement(values: Sequence[Any], declared: Domain | None) -> Movement | None:
    first = values[0]
    if not isinstance(first, np.ndarray) or not first.size or any(each.shape != first.shape for each in values):
        return None
    if declared is not None and declared.low is None:
        return Movement(Kind.FIXED, declared=True)
    whole = first.dtype.kind in "iub"
    if not whole and not is_floating(first):
        return None
    few = _few_values(values)
    ends = None if declared is None or declared.high is None else (float(declared.low or 0), float(declared.high))
    if first.dtype.kind == "b" or (whole and few is not None and set(few) <= {0.0, 1.0} and ends in (None, (0.0, 1.0))):
        return Movement(Kind.TWO_VALUES, 0.0, 1.0, declared=ends is not None)
    if whole:
        low, high = ends or (float(min(each.min() for each in values)), float(max(each.max() for each in values)))
        if ends is None and low == high:  # lengths of N, whose other end nobody shows
            low, high = (1.0, high) if low > 0 else (low, 0.0)
        row = first.shape[-1] if first.ndim else 1
        steps = [np.diff(each.astype(np.int64), axis=-1) for each in values] if row > 1 else []
        ascending = any(each.any() for each in steps) and all((each >= 0).all() for each in steps)
        distinct = bool(steps) and all((np.diff(np.sort(each, axis=-1), axis=-1) != 0).all() for each in values)
        return Movement(Kind.INTEGERS, low, high, ascending, distinct, declared=ends is not None)
    if few is not None and (ends is None or set(few) <= set(ends)):
        both = ends or (min(few), max(few))
        if both[0] == both[1]:
            return Movement(Kind.CONSTANT, *both)
        return Movement(Kind.TWO_VALUES, *both, declared=ends is not None)
    if ends is not None:
        return Movement(Kind.RANGE, *ends, declared=True)
    same = all(each.tobytes() == first.tobytes() for each in values[1:]) if _alike(values) else False
    return Movement(Kind.TABLE) if same else None


def _alike(values: Sequence[np.ndarray]) -> bool:
    """Whether their first elements are: of most inputs these show that draws differ."""
    heads = [each.reshape(-1)[:_SAMPLE].tobytes() for each in values]
    return len(set(heads)) == 1


def _few_values(values: Sequence[np.ndarray]) -> tuple[float, ...] | None:
    """The one or two values that these arrays have together; None where there are more, or NaN."""
    found: list[float] = []
    for cut in (_SAMPLE, None):
        for each in values:
            flat = each.reshape(-1)[:cut]
            left = flat if flat.dtype.kind in "iubf" else flat.astype(np.float32)
            for value in found:
                left = left[left != value]
            while left.size:
                if len(found) == 2 or left[0] != left[0]:
                    return None
                found.append(float(left[0]))
                left = left[left != left[0]]
    return tuple(sorted(found))


def index_axis(
    inputs: Sequence[Any], number: int, movement: Movement, defined: Callable[[list[Any]], bool]
) -> tuple[int, int] | None:
    """The axis that the integers of input `number` are indices of, where the reference itself shows it: `defined` for
    its last element and not for the one after that. Only of axes longer than any drawn index."""
    if movement.kind is not Kind.INTEGERS or movement.declared or movement.low < 0 or movement.ascending:
        return None
    axes = sorted(
        (size, at, axis)
        for at, value in enumerate(inputs)
        if at != number and is_floating(value)
        for axis, size in enumerate(value.shape)
        if size > movement.high + 1 and size - 1 <= np.iinfo(inputs[number].dtype).max
    )
    for size, at, axis in axes:
        if not defined(_with_first(inputs, number, size - 1)):
            return None
        if not defined(_with_first(inputs, number, size)):
            return at, axis
    return None


def _with_first(inputs: Sequence[Any], number: int, value: int) -> list[Any]:
    changed = list(inputs)
    changed[number] = changed[number].copy()
    changed[number].reshape(-1)[0] = value
    return changed


def moved_inputs(inputs: Sequence[Any], found: Sequence[Movement | None], seed: int, complement: bool) -> list[Any]:
    """The inputs with other values of their domains, ends included; with `complement`, every element of integers and
    of two values is another than without it."""
    result = list(inputs)
    for number, movement in enumerate(found):
        if movement is None or not movement.moves:
            continue
        if movement.axis is not None:
            at, axis = movement.axis
            movement = replace(movement, high=float(inputs[at].shape[axis] - 1))
        draw = np.random.default_rng([seed, number, 7])
        array = inputs[number]
        wide = array if array.dtype.kind in "iubf" else array.astype(np.float32)
        result[number] = _MOVES[movement.kind](wide, movement, draw, complement).astype(array.dtype)
    return result


def other_number(value: Any, kind: str) -> Any:
    """Half as large again, if it is a number of this kind of dtype; anything else, and 0 of integers, as it is."""
    number = np.asarray(value)
    if not isinstance(value, (int, float, np.generic)) or number.dtype.kind != kind:
        return value
    other = np.asarray((3 * number + 1) // 2 if kind == "i" else 1.5 * number or 0.5, number.dtype)
    return other[()] if isinstance(value, np.generic) else other.item()


def _two_values(array: np.ndarray, movement: Movement, draw: np.random.Generator, complement: bool) -> np.ndarray:
    first = (draw.random(array.shape, np.float32) < 0.5) != complement
    return np.where(first, movement.low, movement.high)


def _integers(array: np.ndarray, movement: Movement, draw: np.random.Generator, complement: bool) -> np.ndarray:
    low, high = int(movement.low), int(movement.high)
    row = array.shape[-1] if array.ndim else 1
    freedom = high - low + 1 > row
    if movement.distinct and not freedom:
        values = np.take_along_axis(array, draw.random(array.shape).argsort(axis=-1), axis=-1).astype(np.int64)
        return low + high - values if complement else values
    if movement.distinct:
        values = low + np.sort(_without_repeats(draw, high - low + 1, array.shape), axis=-1)
    else:
        values = draw.integers(low, high + 1, array.shape)
        ends = values.reshape(-1)
        places = draw.permutation(ends.size)[:2]
        ends[places] = draw.permutation([low, high])[: len(places)]
        values = np.sort(values, axis=-1) if movement.ascending else values
    if row > 2 and (movement.distinct or movement.ascending):  # offsets of parts begin and end where they do
        values[..., 0], values[..., -1] = low, high
    if not movement.ascending and movement.distinct:
        values = np.take_along_axis(values, draw.random(values.shape).argsort(axis=-1), axis=-1)
    if not complement:
        return values
    other = low + high - values
    if movement.ascending:
        return np.flip(other, axis=-1)
    return other if movement.distinct else np.where(other == values, np.minimum(values + 1, high), other)


def _without_repeats(draw: np.random.Generator, count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers below `count`, each row without repeats."""
    rows = int(np.prod(shape[:-1]))
    found = [draw.choice(count, shape[-1], replace=False) for _ in range(rows)]
    return np.array(found, np.int64).reshape(shape)


def _constant(array: np.ndarray, movement: Movement, draw: np.random.Generator, complement: bool) -> np.ndarray:
    """Of zeros: positive numbers, then of both signs. Of another number: half of it zeros; then the other half, beside
    other numbers."""
    value = movement.low
    if value == 0:
        return draw.normal(size=array.shape) if complement else draw.uniform(0.5, 1.5, array.shape)
    gone = (draw.random(array.shape, np.float32) < 0.5) != complement
    others = value * draw.uniform(0.5, 1.5, array.shape) if complement and np.isfinite(value) else value
    return np.where(gone, 0.0, others)


def _table(array: np.ndarray, movement: Movement, draw: np.random.Generator, complement: bool) -> np.ndarray:
    if complement:
        return array * draw.uniform(0.5, 1.5, array.shape)
    values = draw.normal(size=array.shape) * np.sqrt(np.mean(np.square(array, dtype=np.float64)))
    return np.abs(values) if array.min() >= 0 else values


def _range(array: np.ndarray, movement: Movement, draw: np.random.Generator, complement: bool) -> np.ndarray:
    values = draw.uniform(movement.low, movement.high, array.shape)
    places = draw.permutation(values.size)[:2]
    values.reshape(-1)[places] = (movement.low, movement.high)[: len(places)]
    return movement.low + movement.high - values if complement else values


_MOVES: dict[Kind, Callable[[np.ndarray, Movement, np.random.Generator, bool], np.ndarray]] = {
    Kind.TWO_VALUES: _two_values,
    Kind.INTEGERS: _integers,
    Kind.CONSTANT: _constant,
    Kind.TABLE: _table,
    Kind.RANGE: _range,
}
