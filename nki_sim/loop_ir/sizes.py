"""Numbers as a kernel for several shapes says them: in the sizes of its parameters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import gcd

Values = tuple[int, ...]
"""One number at each of the shapes that a kernel was traced at."""


class NoForm(Exception):
    """A number depends on the shape in no way that is known."""


@dataclass(frozen=True)
class Dimension:
    parameter: str
    at: int
    name: str
    values: Values


@dataclass
class Sizes:
    """Names for numbers. Remembers which names were used, and what has to divide."""

    dimensions: Sequence[Dimension]
    constants: Sequence[tuple[str, int]] = ()
    """Names of the module's own integers."""
    used: set[str] = field(default_factory=set)
    divided: set[tuple[str, int]] = field(default_factory=set)
    """(size, number that has to divide it)."""

    def text(self, values: Values, near: Collection[str] = (), tight: bool = False) -> str:
        """`near`: names on the source line that the number comes from. `tight`: a factor of a product.

        Raises NoForm.
        """
        found = self._found(values, near)
        return f"({found})" if tight and not found.isidentifier() and not found.isdigit() else found

    def _found(self, values: Values, near: Collection[str]) -> str:
        first = values[0]
        if all(value == first for value in values):
            for name, value in self.constants:
                if value == first and name in near:
                    self.used.add(name)
                    return name
            return str(first)
        forms = [form for each in self.dimensions if (form := self._of(values, each)) is not None]
        if not forms:
            raise NoForm(f"{' and '.join(map(str, values))} is no multiple or part of a parameter's size")
        text, each, divisor = min(
            forms, key=lambda form: (form[1].name not in near, form[0] != form[1].name, len(form[0]))
        )
        self.used.add(each.name)
        if divisor > 1:
            self.divided.add((each.name, divisor))
        return self._with_constants(text, near)

    def _of(self, values: Values, dimension: Dimension) -> tuple[str, Dimension, int] | None:
        """The values as a rational multiple of a size."""
        numerator, denominator = values[0], dimension.values[0]
        divisor = gcd(numerator, denominator)
        numerator, denominator = numerator // divisor, denominator // divisor
        if any(value * denominator != size * numerator for value, size in zip(values, dimension.values)):
            return None
        if len(set(dimension.values)) == 1:
            return None
        text = dimension.name if denominator == 1 else f"{dimension.name} // {denominator}"
        if numerator != 1:
            text = f"{text} * {numerator}"
        return text, dimension, denominator

    def _with_constants(self, text: str, near: Collection[str]) -> str:
        words = text.split(" ")
        for at, word in enumerate(words):
            if word.isdigit():
                for name, value in self.constants:
                    if name in near and value == int(word):
                        words[at] = name
                        self.used.add(name)
                        break
        return " ".join(words)
