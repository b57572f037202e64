"""Kernels drawn by chance whose helpers change objects and lists, leave early and call each other: normalized, they
compute what they did."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable

import numpy as np
import pytest

import nki_sim
from accelopt_core.transforms.base import parse_kernel
from accelopt_core.transforms.normalize import normalized
from tests.transforms.running import HEADER

nki_sim.install()

X = np.zeros((1, 64), np.float32)
MOST_SEEN = X.size

CLASSES = """
from dataclasses import dataclass


@dataclass
class Pair:
    one: int
    other: int = 3

    @property
    def both(self):
        return self.one + self.other

    def larger(self, by):
        return max(self.one, self.other) + by


class Box:
    def __init__(self, value):
        self.value = value

    def grow(self, by=1):
        self.value += by
        return self.value


SIZE = 4


"""


class Drawn:
    """A kernel's text. What it computes is the numbers that it shows, each in a column of its output."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        self.helpers: list[tuple[str, list[str]]] = []
        """Name and kinds of the parameters."""

    def text(self) -> str:
        functions = [self.helper(number) for number in range(self.pick.randint(1, 3))]
        kinds = {"a": "number", "b": "number", "items": "list", "box": "box", "pair": "pair"}
        body = [
            "seen = []", "a = 1", "b = 5", "items = [2, 7, 1]", f"box = Box({self.pick.randint(0, 3)})",
            f"pair = Pair({self.pick.choice(['a', '2', 'SIZE', 'one=b, other=1'])})",
            *self.block(dict(kinds), self.pick.randint(3, 7), 1),
            "show(seen, [a, b, box.value, pair.one, pair.other, *items])",
        ]  # fmt: skip
        lines = "".join(f"    {line}\n" for line in body)
        kernel = (
            "@nki.jit\ndef kernel(x):\n"
            "    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n"
            "    row = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)\n    nisa.memset(dst=row, value=-1.0)\n"
            f"{lines}"
            f"    for at, number in enumerate(seen[:{MOST_SEEN}]):\n"
            "        nisa.memset(dst=row[0:1, at : at + 1], value=float(number % 4096))\n"
            "    nisa.dma_copy(dst=out, src=row)\n    return out\n"
        )
        show = "def show(seen, values):\n    for value in values:\n        seen.append(value)\n\n\n"
        return HEADER + CLASSES + show + "\n\n".join(functions) + "\n\n" + kernel

    def helper(self, number: int) -> str:
        kinds = [self.pick.choice(["number", "number", "list", "box", "pair"]) for _ in range(self.pick.randint(1, 4))]
        names = {name: kind for name, kind in zip(("a", "t", "u", "box"), kinds)}
        body = self.block({"seen": "seen", **names}, self.pick.randint(1, 4), 1)
        if self.pick.random() < 0.3:
            inner = [f"    {line}" for line in self.block({"seen": "seen", **names}, 1, 2)]
            body += [f"if {self.number(names)} > {self.number(names)}:", *inner, f"    return {self.number(names)}"]
        body.append(f"return {self.number(names)}")
        head = ", ".join(["seen", *names])
        lines = "".join(f"    {line}\n" for line in body)
        text = f"def f{number}({head}):\n{lines}\n"
        self.helpers.append((f"f{number}", kinds))
        return text

    def block(self, names: dict[str, str], statements: int, depth: int) -> list[str]:
        return [line for _ in range(statements) for line in self.statement(names, depth)]

    def statement(self, names: dict[str, str], depth: int) -> list[str]:
        of: Callable[[str], list[str]] = lambda kind: [name for name, its in names.items() if its == kind]  # noqa: E731
        makers: list[Callable[[], list[str]]] = [lambda: [f"seen.append({self.number(names)})"]] * 2
        makers.append(lambda: [f"{self.pick.choice([*of('number'), 'n'])} = {self.number(names)}"])
        for box in of("box"):
            makers.append(lambda box=box: [f"{box}.value = {self.number(names)}"])
            makers.append(lambda box=box: [f"{box}.value += {self.number(names)}"])
        for pair in of("pair"):
            makers.append(lambda pair=pair: [f"{pair}.one = {self.number(names)}"])
        for items in of("list"):
            makers.append(lambda items=items: [f"{items}[{self.pick.randint(0, 2)}] = {self.number(names)}"])
        if depth < 3:
            makers.append(lambda: [f"for i in range({self.pick.randint(1, 3)}):", *self.inside(names, depth, "i")])
            makers.append(lambda: [f"if {self.number(names)} > {self.number(names)}:", *self.inside(names, depth)])
        if self.helpers:
            makers += [lambda: [self.call(names)], lambda: [f"n = {self.call(names)}"]] * 2
            makers.append(lambda: [f"seen.append({self.number(names)} + {self.call(names)})"])
        made = self.pick.choice(makers)()
        if made[-1].startswith("n = "):
            names["n"] = "number"
        if made[0].startswith("n = "):
            names["n"] = "number"
        return made

    def inside(self, names: dict[str, str], depth: int, more: str = "") -> list[str]:
        inner = dict(names)
        if more:
            inner[more] = "number"
        return [f"    {line}" for line in self.block(inner, self.pick.randint(1, 2), depth + 1)]

    def number(self, names: dict[str, str]) -> str:
        found = [str(self.pick.randint(0, 9)), "SIZE"]
        for name, kind in names.items():
            if kind == "number":
                found += [name, name, f"({name} + {self.pick.randint(1, 3)})", f"({name} * 2 % 97)"]
            if kind == "list":
                found += [f"{name}[{self.pick.randint(0, 2)}]"] * 2
            if kind == "box":
                found += [f"{name}.value", f"{name}.value", f"{name}.grow()"]
            if kind == "pair":
                found += [f"{name}.one", f"{name}.other", f"{name}.both", f"{name}.larger({self.pick.randint(0, 2)})"]
        return self.pick.choice(found)

    def call(self, names: dict[str, str]) -> str:
        name, kinds = self.pick.choice(self.helpers)
        given = []
        for kind in kinds:
            of_kind = [each for each, its in names.items() if its == kind]
            if kind == "number":
                given.append(self.number(names))
            elif of_kind:
                given.append(self.pick.choice(of_kind))
            else:
                given.append({"list": "[4, 5, 6]", "box": "Box(2)", "pair": "Pair(1)"}[kind])
        return f"{name}(seen, {', '.join(given)})"


def run(source: str) -> np.ndarray:
    module = types.ModuleType("attacked")
    sys.modules["attacked"] = module  # a dataclass looks for its own
    try:
        exec(compile(source, "attacked.py", "exec"), module.__dict__)
        result: np.ndarray = nki_sim.simulate(module.kernel)(X)
        return result
    finally:
        del sys.modules["attacked"]


def faulty(seed: int) -> str | None:
    """The kernel's text with its normal form, where that computes something else."""
    source = Drawn(seed).text()
    try:
        wanted = run(source)
    except Exception:  # a name that is not bound on the way that it takes, a number that is too large
        return None
    made = normalized(parse_kernel(source)).tree.code
    try:
        got = run(made)
    except Exception as error:
        return f"{source}\n# -----> {type(error).__name__}: {error}\n{made}"
    return None if np.array_equal(got, wanted) else f"{source}\n# -----> {wanted} and now {got}\n{made}"


@pytest.mark.parametrize("seed", range(24))
def test_helpers_that_change_what_they_are_given(seed: int) -> None:
    assert faulty(seed) is None


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2000, 200))
def test_many_of_them(first: int) -> None:
    assert [seed for seed in range(first, first + 200) if faulty(seed) is not None] == []
