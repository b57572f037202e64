"""Linear forms in loop counters: `128 * i + j + 3`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

Terms = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Affine:
    """`constant` plus the sum of coefficient times variable; no coefficient is zero, variables are in order."""

    constant: int = 0
    terms: Terms = ()

    @staticmethod
    def of(constant: int, terms: Mapping[str, int]) -> Affine:
        return Affine(constant, tuple(sorted([term for term in terms.items() if term[1]])))

    @staticmethod
    def variable(name: str) -> Affine:
        return Affine(0, ((name, 1),))

    def __add__(self, other: Union[Affine, int]) -> Affine:
        if isinstance(other, int):
            return Affine(self.constant + other, self.terms) if other else self
        if not other.terms:
            return self + other.constant
        if not self.terms:
            return other + self.constant
        total = dict(self.terms)
        for name, factor in other.terms:
            total[name] = total.get(name, 0) + factor
        return Affine.of(self.constant + other.constant, total)

    __radd__ = __add__

    def __sub__(self, other: Union[Affine, int]) -> Affine:
        return self + other * -1

    def __mul__(self, factor: int) -> Affine:
        if factor == 1:
            return self
        return Affine(self.constant * factor, tuple([(name, n * factor) for name, n in self.terms if factor]))

    __rmul__ = __mul__

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.terms)

    def coefficient(self, name: str) -> int:
        return next((factor for each, factor in self.terms if each == name), 0)

    def substitute(self, values: Mapping[str, Union[Affine, int]]) -> Affine:
        if not any([name in values for name, _ in self.terms]):
            return self
        constant, terms = self.constant, dict[str, int]()
        for name, factor in self.terms:
            value = values.get(name)
            form = Affine.variable(name) if value is None else Affine(value) if isinstance(value, int) else value
            constant += form.constant * factor
            for each, more in form.terms:
                terms[each] = terms.get(each, 0) + more * factor
        return Affine.of(constant, terms)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The value at those of its variables: integers, or arrays that broadcast against each other."""
        total: Any = self.constant
        for name, factor in self.terms:
            total = total + values[name] * factor
        return total

    def bounds(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """The least and the greatest value, where each variable is between its two, both included."""
        low = high = self.constant
        for name, factor in self.terms:
            first, last = ranges[name]
            low += factor * (first if factor > 0 else last)
            high += factor * (last if factor > 0 else first)
        return low, high
