"""The corpus: which operator, at which spot of which kernel. The same list in the same order every time."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tests.mutations.bases import Base, bases
from tests.mutations.operators import OPERATORS, spots

PER_OPERATOR = 2
"""Mutants of one kernel by one operator, at most: spread over all that there are."""


@dataclass(frozen=True)
class Mutant:
    base: Base
    operator: str
    number: int
    """Among all that the operator makes of this kernel."""
    source: str
    instead: str
    """What the kernel's text says now, for people."""

    @property
    def name(self) -> str:
        return f"{self.base.name}: {self.operator} {self.number}"


def corpus(only: Collection[str] = ()) -> Iterator[Mutant]:
    """Of the kernels with those names, or of all."""
    for base in (b for b in bases() if not only or b.name in only):
        tree = ast.parse(base.source)
        places = spots(tree)
        for operator, change in OPERATORS.items():
            made = [(at, which) for at, spot in enumerate(places) for which, _ in enumerate(change(spot))]
            chosen = {round(i * (len(made) - 1) / (PER_OPERATOR - 1)) for i in range(PER_OPERATOR)} if made else set()
            for number in sorted(chosen):
                yield _mutant(base, operator, number, *made[number])


def _mutant(base: Base, operator: str, number: int, at: int, which: int) -> Mutant:
    tree = ast.parse(base.source)
    spot = spots(tree)[at]
    instead = list(OPERATORS[operator](spot))[which]
    spot.body[spot.index : spot.index + 1] = instead
    if operator == "removed dependency":
        spot.body[:] = _moved(spot.body, instead)
    source = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return Mutant(base, operator, number, source, "; ".join(ast.unparse(s) for s in instead)[:200])


def _moved(body: list[ast.stmt], instead: list[ast.stmt]) -> list[ast.stmt]:
    """Without the barrier that stood here, where another was put elsewhere."""
    return [s for s in body if s in instead or not (isinstance(s, ast.Expr) and "core_barrier" in ast.unparse(s))]
