"""Integers that remember how they were computed: loop variables and named sizes, in linear forms.

`128 * i + start` is an int like any other, and also the sum {i: 128, start: 1}; that is what an index of the
migrated kernel is written from.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass
class Binding:
    """What a name of the kernel's source holds now: an integer, or None for anything else."""

    value: int | None = None


@dataclass(frozen=True)
class Atom:
    """A name of the kernel's source, and the integer that it held when it was read."""

    name: str
    function: str
    """The function whose name it is; empty for a module's."""
    is_loop: bool
    value: int = 0
    text: str = ""
    """An expression instead of a name, for what is not linear."""
    binding: Binding | None = field(default=None, compare=False)
    parts: tuple[Atom, ...] = field(default=(), compare=False)
    """The atoms of such an expression."""

    @property
    def is_stale(self) -> bool:
        """Whether the name holds something else by now."""
        return self.binding is not None and self.binding.value != self.value or any(a.is_stale for a in self.parts)


class Symbolic(int):
    """An int with a linear form over atoms. Arithmetic that is not linear gives a plain int."""

    terms: Mapping[Atom, int]
    constant: int

    @staticmethod
    def of(value: int, terms: Mapping[Atom, int], constant: int) -> Symbolic:
        self = int.__new__(Symbolic, value)
        self.terms = terms
        self.constant = constant
        return self

    @staticmethod
    def named(atom: Atom) -> Symbolic:
        return Symbolic.of(atom.value, {atom: 1}, 0)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        if not isinstance(other, Symbolic):
            return Symbolic.of(int(self) + int(other), self.terms, self.constant + int(other))
        terms = dict(self.terms)
        for atom, factor in other.terms.items():
            terms[atom] = terms.get(atom, 0) + factor
            if not terms[atom]:
                del terms[atom]
        return Symbolic.of(int(self) + int(other), terms, self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Symbolic:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        return (-self) + other

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        if isinstance(other, Symbolic):
            if not self.terms:
                return other * self.constant
            if other.terms:
                return self._product(other)
            other = other.constant
        factor = int(other)
        if not factor:
            return 0
        return Symbolic.of(int(self) * factor, {a: n * factor for a, n in self.terms.items()}, self.constant * factor)

    __rmul__ = __mul__

    def _product(self, other: Symbolic) -> Symbolic:
        """Two sums multiplied term by term: each pair of atoms is an atom of its own."""
        total = Symbolic.of(self.constant * other.constant, {}, self.constant * other.constant)
        for one, few in (*self.terms.items(), (None, self.constant)):
            for two, many in (*other.terms.items(), (None, other.constant)):
                if one is None and two is None or not few * many:
                    continue
                atom = one or two
                if one is not None and two is not None:
                    first, second = sorted((one, two), key=lambda a: (not a.is_loop, a.name))
                    atom = Atom(
                        f"{first.name}*{second.name}",
                        one.function,
                        one.is_loop or two.is_loop,
                        one.value * two.value,
                        f"{first.text or first.name} * {second.text or second.name}",
                        parts=(one, two),
                    )
                assert atom is not None
                total = total + Symbolic.named(atom) * (few * many)
        return total

    def current(self) -> int:
        """The same for good, with names that hold something else by now as numbers."""
        stale = sum(atom.value * factor for atom, factor in self.terms.items() if atom.is_stale)
        fresh = [(atom, factor) for atom, factor in self.terms.items() if not atom.is_stale]
        kept = {replace(atom, binding=None, parts=()): factor for atom, factor in fresh}
        return Symbolic.of(int(self), kept, self.constant + stale)

    @staticmethod
    def _opaque(sign: str, one: int, two: int, value: int) -> Any:
        """`(a // b)` as an atom of its own: exact, and readable, but nothing is known of it."""
        atoms = [atom for each in (one, two) if isinstance(each, Symbolic) for atom in each.terms]
        if not atoms:
            return value
        text = f"({written(one, tight=True)} {sign} {written(two, tight=True)})"
        is_loop = any(a.is_loop for a in atoms)
        return Symbolic.named(Atom(text, atoms[0].function, is_loop, value, text, parts=tuple(atoms)))

    def __index__(self) -> int:
        return int(self)

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other)

    def __reduce__(self) -> Any:
        return int, (int(self),)


def _operator(sign: str, function: Callable[[int, int], Any], swapped: bool) -> Callable[[Symbolic, Any], Any]:
    def operate(self: Symbolic, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        one, two = (other, self) if swapped else (self, other)
        value = function(int(one), int(two))
        return Symbolic._opaque(sign, one, two, value) if type(value) is int else value

    return operate


for _sign, _name in (
    *(("//", "floordiv"), ("%", "mod"), ("**", "pow"), ("<<", "lshift"), (">>", "rshift")),
    *(("&", "and_"), ("|", "or_"), ("^", "xor")),
):
    _plain = _name.strip("_")
    setattr(Symbolic, f"__{_plain}__", _operator(_sign, getattr(operator, _name), False))
    setattr(Symbolic, f"__r{_plain}__", _operator(_sign, getattr(operator, _name), True))


def written(value: int, tight: bool = False) -> str:
    """The integer as source. `tight`: in parentheses unless it is one name or number."""
    if not isinstance(value, Symbolic):
        return str(int(value)) if int(value) >= 0 or not tight else f"({int(value)})"
    parts: list[str] = []
    for atom, factor in sorted(value.terms.items(), key=lambda term: term[1] < 0):  # no minus in front if avoidable
        name = atom.text or atom.name
        size = abs(factor)
        term = name if size == 1 else f"{size} * {name}"
        parts.append(
            term if not parts and factor > 0 else f"{'-' if factor < 0 else '+'} {term}" if parts else f"-{term}"
        )
    number = value.constant
    if number > 0 and parts and parts[0].startswith("-"):
        parts[0] = f"- {parts[0][1:]}"
        parts.insert(0, str(number))
    elif number or not parts:
        parts.append(str(number) if not parts else f"{'-' if number < 0 else '+'} {abs(number)}")
    text = " ".join(parts)
    simple = text.isidentifier() or text.isdigit() or (text[0] == "(" and text[-1] == ")" and len(value.terms) == 1)
    return text if simple or not tight else f"({text})"


def atoms(value: int) -> tuple[Atom, ...]:
    return tuple(value.terms) if isinstance(value, Symbolic) else ()


def plain(value: Any) -> int:
    return int(operator.index(value))
