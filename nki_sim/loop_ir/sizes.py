"""Numbers as a kernel for several shapes says them: in the sizes of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import gcd
from typing import NamedTuple, Union

from nki_sim.machine import ISA

Values = tuple[Union[int, None], ...]
"""One number at each of the shapes that a kernel was traced at; None where it is not known."""

_ROUND = 8
_TILES = tuple(int(ISA.partitions * part) for part in (1, 4, 0.5, 2, 0.25, 8))
"""Sizes by which kernels cut what they work on, where the kernel names none of its own."""


class NoForm(Exception):
    """A number depends on the shape in no way that is known."""


@dataclass(frozen=True)
class Dimension:
    parameter: str
    at: int
    name: str
    values: tuple[int, ...]
    is_made_up: bool = False
    """The source has no name for it."""


class _Form(NamedTuple):
    text: str
    of: Dimension
    tile: int
    """By which the size is divided."""
    exact: bool
    """It is a multiple or part of the size, whatever that is."""
    condition: str = ""

    def rank(self, near: Collection[str]) -> tuple[object, ...]:
        """The least is best: the size itself, round tiles, what the source names there or anywhere."""
        is_odd, is_far = self.tile > 1 and self.tile % _ROUND != 0, self.of.name not in near
        return self.text != self.of.name, is_odd, is_far, self.of.is_made_up, not self.exact, len(self.text)


_ORDER: tuple[tuple[int, Callable[[_Form], bool]], ...] = (
    (0, lambda form: form.exact),
    (1, lambda form: form.text == form.of.name),
    (0, lambda form: not form.text.startswith(("min(", "max("))),
    (1, lambda form: form.exact and form.tile in _TILES),
    (0, lambda form: True),
    (1, lambda form: True),
    (2, lambda form: True),
)
"""By how much less than a form a number may be, and which forms; the first that fits."""


def _proportion(one: Dimension, other: Dimension) -> str:
    """How many times the one the other is; empty where that differs from shape to shape."""
    divisor = gcd(one.values[0], other.values[0])
    times, of = one.values[0] // divisor, other.values[0] // divisor
    if any(a * of != b * times for a, b in zip(one.values, other.values)):
        return ""
    first, second = (f"{each.name} * {by}" if by > 1 else each.name for each, by in ((one, of), (other, times)))
    return f"{first} == {second}" if of == 1 else f"{second} == {first}"


def _made_up(dimensions: Sequence[Dimension]) -> int:
    return sum(each.is_made_up for each in dimensions)


@dataclass
class Sizes:
    """Names for numbers. Remembers which names were used, and what has to divide."""

    dimensions: Sequence[Dimension]
    constants: Sequence[tuple[str, int]] = ()
    """Names of the module's own integers."""
    used: set[str] = field(default_factory=set)
    conditions: set[str] = field(default_factory=set)
    """What has to hold of sizes for the forms that were used."""

    def needed(self) -> list[str]:
        """The conditions without those that others say too: of `N % 128 == 0` and `N % 256 == 0` the second."""
        split = {each: each.removesuffix(" == 0").partition(" % ") for each in self.conditions}
        parts = {each: (name, int(by)) for each, (name, _, by) in split.items() if name.isidentifier() and by.isdigit()}
        more = {
            each for each, (name, by) in parts.items()
            if any(name == other and of > by and of % by == 0 for other, of in parts.values())
        }  # fmt: skip
        return sorted(self.conditions - more)

    def text(self, values: Values, near: Collection[str] = (), tight: bool = False) -> str:
        """`near`: names on the source line that the number comes from. `tight`: a factor of a product.

        Raises NoForm.
        """
        found = self._found(values, near)
        return f"({found})" if tight and not found.isidentifier() and not found.isdigit() else found

    def _found(self, values: Values, near: Collection[str]) -> str:
        known = [value for value in values if value is not None]
        first = known[0] if known else 0
        if all(value == first for value in known):
            return self._constant(first, near)
        for less, fits in _ORDER:
            found = self._in_sizes(tuple(None if value is None else value + less for value in values), near, fits)
            if found is not None:
                return f"{found} - {less}" if less else found
        for each in self.dimensions:
            apart = {value - size for value, size in zip(values, each.values) if value is not None}
            if len(apart) == 1 and len(set(each.values)) > 1:
                difference = apart.pop()
                return f"{self._use(each.name)} {'-' if difference < 0 else '+'} {abs(difference)}"
        pairs = sorted(product(self.dimensions, repeat=2), key=lambda pair: (_made_up(pair), pair[0] is pair[1]))
        for one, other in pairs:
            found = self._product(values, one, other)
            if found is not None:
                return found
        raise NoForm(f"{' and '.join(map(str, known))} is no multiple or part of a parameter's size")

    def _in_sizes(self, values: Values, near: Collection[str], fits: Callable[[_Form], bool]) -> str | None:
        forms = [form for each in self.dimensions if (form := self._of(values, each)) is not None and fits(form)]
        if not forms:
            return None
        best = min(forms, key=lambda form: form.rank(near))
        self.used.add(best.of.name)
        if best.exact and best.of.name not in near:
            self._tell_apart(best, forms)
        if best.condition:
            self.conditions.add(best.condition)
        return self._with_constants(best.text, near)

    def _tell_apart(self, best: _Form, forms: Sequence[_Form]) -> None:
        """Which of several sizes a number comes from cannot be told: they have to be as they are at these shapes."""
        told = {best.of.values}
        for other in forms:
            if other.exact and other.of.values not in told:
                told.add(other.of.values)
                self.used.add(other.of.name)
                self.conditions.add(_proportion(best.of, other.of) or f"{best.text} == {other.text}")

    def _product(self, values: Values, one: Dimension, other: Dimension) -> str | None:
        """The values as a multiple or part of two sizes."""
        rows = [(value, a, b) for value, a, b in zip(values, one.values, other.values) if value is not None]
        value, a, b = rows[0]
        numerator, denominator = value // gcd(value, a * b), a * b // gcd(value, a * b)
        if any(v * denominator != a * b * numerator or a % denominator for v, a, b in rows):
            return None
        if denominator > 1:
            self.conditions.add(f"{one.name} % {denominator} == 0")
        text = f"{self._use(one.name)} // {denominator}" if denominator > 1 else self._use(one.name)
        return f"{text} * {self._use(other.name)}" + (f" * {numerator}" if numerator > 1 else "")

    def _constant(self, value: int, near: Collection[str]) -> str:
        for name, known in self._near(near):
            if known == value:
                return self._use(name)
        for name, known in self._near(near):
            if known == value + 1 and value > 1:
                return f"{self._use(name)} - 1"
        return str(value)

    def _near(self, near: Collection[str]) -> Iterator[tuple[str, int]]:
        """Names of that line that are one number at all shapes."""
        for name, value in self.constants:
            if name in near:
                yield name, value
        for each in self.dimensions:
            if each.name in near and len(set(each.values)) == 1:
                yield each.name, each.values[0]

    def _use(self, name: str) -> str:
        self.used.add(name)
        return name

    def _of(self, values: Values, dimension: Dimension) -> _Form | None:
        """The values as a multiple or part of a size; or as whole tiles of it, or what is left of them."""
        pairs = [(value, size) for value, size in zip(values, dimension.values) if value is not None]
        if len({size for _, size in pairs}) < 2:
            return None
        numerator, denominator = pairs[0]
        divisor = gcd(numerator, denominator)
        numerator, denominator = numerator // divisor, denominator // divisor
        name = dimension.name
        if all(value * denominator == size * numerator for value, size in pairs):
            text = name if denominator == 1 else f"{name} // {denominator}"
            condition = f"{name} % {denominator} == 0" if denominator > 1 else ""
            return _Form(text if numerator == 1 else f"{text} * {numerator}", dimension, denominator, True, condition)
        for tile in dict.fromkeys((*(value for _, value in self.constants), *_TILES)):
            if tile > 1 and all(value == size // tile for value, size in pairs):
                return _Form(f"{name} // {tile}", dimension, tile, False)
            if tile > 1 and all(value == size % tile for value, size in pairs):
                return _Form(f"{name} % {tile}", dimension, tile, False)
            if tile > 1 and all(value == size // tile * tile for value, size in pairs):
                return _Form(f"{name} // {tile} * {tile}", dimension, tile, False)
            if tile > 1 and all(value == -(-size // tile) for value, size in pairs):
                return _Form(f"({name} + {tile - 1}) // {tile}", dimension, tile, False)
        return self._bounded(name, dimension, pairs)

    def _bounded(self, name: str, dimension: Dimension, pairs: Sequence[tuple[int, int]]) -> _Form | None:
        """Blocks of so many tiles, or of all where there are fewer; and how many such blocks there are."""
        most, least = max(value for value, _ in pairs), min(value for value, _ in pairs)
        for numerator, denominator in {(value, size) for value, size in pairs if value < most}:
            divisor = gcd(numerator, denominator)
            times, part = numerator // divisor, denominator // divisor
            if all(value == min(most, size * times // part) for value, size in pairs):
                text = name if part == 1 else f"{name} // {part}"
                text = text if times == 1 else f"{text} * {times}"
                whole = most * part // gcd(times, most * part)
                if any(size % whole and (size > whole or size % part) for _, size in pairs):
                    continue
                condition = f"({name} % {whole} == 0 or {name} < {whole} and {name} % {part} == 0)"
                return _Form(f"min({most}, {text})", dimension, part, False, condition)
        for value, size in pairs if least == 1 else ():
            tile = size // value
            if tile > 1 and all(each == max(1, of // tile) for each, of in pairs):
                return _Form(f"max(1, {name} // {tile})", dimension, tile, False)
        return None

    def _with_constants(self, text: str, near: Collection[str]) -> str:
        words = text.split(" ")
        for at, word in enumerate(words):
            if word.isdigit():
                words[at] = next((self._use(n) for n, value in self._near(near) if value == int(word)), word)
        return " ".join(words)
