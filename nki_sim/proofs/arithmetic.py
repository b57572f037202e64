"""What a program can be run on instead of numbers: the values, and what the rules of instructions ask of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from nki_sim.dtypes import DType

Array = np.ndarray


class Value(NamedTuple):
    """Values in two lanes; what the lanes are, their arithmetic says."""

    p: Array
    q: Array | None
    """Of the same shape; None where nobody will ask for it."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.p.shape

    def reshape(self, *shape: int) -> Value:
        return Value(self.p.reshape(shape), None if self.q is None else self.q.reshape(shape))

    def moved(self, move: Callable[[Array], Array]) -> Value:
        """The same values in other places."""
        return Value(move(self.p), None if self.q is None else move(self.q))


class Arithmetic(Protocol):
    """`nki_sim.proofs.algebra` has elements of two prime fields, `nki_sim.proofs.rounding` numbers and errors."""

    element: np.dtype[Any]
    """Of both lanes."""
    seed: int
    line: int
    """Of the instruction that is computed now."""
    engine: str
    """Which computes it."""
    wants_q: bool
    """Will somebody ask for the second lane of its results?"""
    always_both: bool
    """Is the second lane carried everywhere, or only where an exponential asks for it?"""

    def random(self, generator: np.random.Generator, shape: tuple[int, ...], needed: bool = True) -> Value: ...

    def number(self, value: float) -> Value:
        """A constant. Raises NotProvable for NaN."""
        ...

    def integers(self, values: Array) -> Value: ...

    def constants(self, values: Array) -> Value:
        """An array of numbers known when tracing."""
        ...

    def given(self, values: Array) -> Value:
        """An argument that is these numbers."""
        ...

    def small_integers(self, x: Value) -> Array:
        """int64, of what was computed from integers. Raises NotProvable where one is none."""
        ...

    def loaded(self, x: Value, dtype: DType) -> Value:
        """As a factor of a product that TensorE reads as `dtype`."""
        ...

    def stored(self, x: Value, dtype: DType) -> Value:
        """What an operand of `dtype` keeps of it."""
        ...

    def add(self, x: Value, y: Value) -> Value: ...

    def subtract(self, x: Value, y: Value) -> Value: ...

    def multiply(self, x: Value, y: Value) -> Value: ...

    def negative(self, x: Value) -> Value: ...

    def reciprocal(self, x: Value) -> Value: ...

    def square(self, x: Value) -> Value: ...

    def matmul(self, left: Value, right: Value) -> Value: ...

    def total(self, x: Value, axes: tuple[int, ...] | int) -> Value: ...

    def product(self, x: Value) -> Value:
        """Along the last axis."""
        ...

    def recurrence(self, start: Value, factors: Value, terms: Value) -> Value:
        """[rows, n]: state i is factor i times the state before it, plus term i."""
        ...

    def exp(self, x: Value) -> Value: ...

    def opaque(self, function: str, *arguments: Value) -> Value:
        """A function of which nothing is known but its name."""
        ...

    def odd(self, function: str, x: Value) -> Value:
        """One with f(-x) = -f(x)."""
        ...

    def where(self, chosen: Array, x: Value, y: Value) -> Value: ...

    def rank(self, x: Value) -> Array:
        """Larger for what counts as larger."""
        ...

    def largest(self, x: Value, least: bool = False) -> Value:
        """Along the last axis."""
        ...

    def larger(self, x: Value, y: Value) -> Value: ...

    def smaller(self, x: Value, y: Value) -> Value: ...

    def compared(self, comparison: Callable[[Array, Array], Array], x: Value, y: Value) -> Value:
        """1 where it holds, else 0."""
        ...

    def truth(self, holds: Array) -> Value: ...

    def absolute(self, x: Value) -> Value: ...
