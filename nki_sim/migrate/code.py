"""The new statements of one function: names that are free, lines so far, and what masks were cut to."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from nki_sim.beta1.facts import Sum
from nki_sim.lint.kernel_source import top_level
from nki_sim.migrate.operands import Operand


def functions_of(body: list[ast.stmt], methods: bool = False) -> list[ast.FunctionDef]:
    """The functions of a module, also those that it defines under a condition, and those of its classes if wanted."""
    found: list[ast.FunctionDef] = []
    for node in top_level(body):
        if isinstance(node, ast.FunctionDef):
            found.append(node)
        elif methods and isinstance(node, ast.ClassDef):
            found += functions_of(node.body, methods)
    return found


class Names:
    """Hands out names that the module does not use yet."""

    def __init__(self, tree: ast.Module) -> None:
        self._taken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        self._taken |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        self._taken |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}

    def new(self, wish: str) -> str:
        name, number = wish, 2
        while name in self._taken:
            name, number = f"{wish}_{number}", number + 1
        self._taken.add(name)
        return name


@dataclass
class Lines:
    """Statements that take the place of one old statement."""

    names: Names
    lines: list[str] = field(default_factory=list)
    counts: dict[str, str] = field(default_factory=dict)
    """Names of extents that are in scope here, by their expressions."""

    def add(self, line: str) -> None:
        self.lines.append(line)

    def call(self, function: str, **arguments: Any) -> None:
        """An instruction, in one line if that is short enough."""
        parts = [f"{name}={value}" for name, value in arguments.items() if value is not None]
        line = f"{function}({', '.join(parts)})"
        if len(line) <= 110:
            self.add(line)
            return
        self.add(f"{function}(")
        for part in parts:
            self.add(f"    {part},")
        self.add(")")

    def count(self, axis: int, expression: str) -> str:
        """A name for how many rows or columns are left, defined at its first use."""
        if expression not in self.counts:
            name = self.names.new("rows" if axis == 0 else "columns")
            self.add(f"{name} = {expression}")
            self.counts[expression] = name
        return self.counts[expression]

    def require(self, condition: str, otherwise: str) -> None:
        """An assertion of what this run has shown, once as long as its names hold what they do."""
        if condition not in self.counts:
            self.counts[condition] = ""
            self.add(f'assert {condition}, "not migrated: {otherwise} with these arguments"')

    def allocate(self, name: str, shape: Iterable[Sum], dtype: str, memory: str) -> Operand:
        """A new tile under `name`; tiles have two dimensions at least."""
        sizes = tuple(shape)
        if len(sizes) == 1:
            sizes = (*sizes, Sum.of(1))
        text = ", ".join(size.text for size in sizes)
        self.add(f"{name} = nl.ndarray(({text}), dtype={dtype_text(dtype)}, buffer=nl.{memory})")
        return Operand(name, sizes, dtype, memory, whole=True)

    @contextmanager
    def only_if(self, condition: str | None) -> Any:
        """What is added meanwhile stands under an if."""
        if condition is None:
            yield
            return
        with self._under(f"if {condition}:"):
            yield

    @contextmanager
    def loops(self, sizes: Mapping[str, str]) -> Any:
        """What is added meanwhile stands in loops of these names and counts."""
        with ExitStack() as stack:
            for name, size in sizes.items():
                stack.enter_context(self._under(f"for {name} in range({size}):"))
            yield

    @contextmanager
    def _under(self, header: str) -> Any:
        outer, self.lines = self.lines, []
        yield
        inner, self.lines = self.lines, outer
        self.lines += [header, *(f"    {line}" for line in inner)]


def dtype_text(dtype: str) -> str:
    return dtype if not dtype.isidentifier() or dtype not in DTYPES else f"nl.{DTYPES[dtype]}"


DTYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float8_e4m3": "float8_e4m3",
    "float8_e5m2": "float8_e5m2",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "bool": "bool_",
}
"""What `nl` calls an element type."""
