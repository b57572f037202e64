"""A kernel file as the rules see it: its syntax tree, what its names import, which functions are kernel code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Union

_BLOCKS = ("body", "orelse", "finalbody")
FunctionNode = Union[ast.FunctionDef, ast.AsyncFunctionDef]


def blocks_of(node: ast.AST) -> list[list[ast.stmt]]:
    """The blocks of a compound statement: of an `if`, a loop, a `with`, a `try`, a `match`; of others, none."""
    parts = [node, *getattr(node, "handlers", []), *getattr(node, "cases", [])]
    return [getattr(part, name) for part in parts for name in _BLOCKS if getattr(part, name, None)]


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """A module's statements and those under its conditions, the first branch last: its names are those that count."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)) and not _is_program(node):
            for block in reversed(blocks_of(node)):
                yield from top_level(block)


def _is_program(node: ast.stmt) -> bool:
    """What a file does as a program of its own."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


@dataclass(frozen=True)
class KernelSource:
    tree: ast.Module
    neighbours: frozenset[str] = frozenset()
    """Modules and packages beside the file, which it may import."""

    @cached_property
    def imports(self) -> dict[str, str]:
        """Local name -> dotted name of what it imports; one of the file's own package begins with dots."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                within = "." * node.level + (f"{node.module}." if node.module else "")
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{within}{alias.name}"
        return found

    def dotted(self, node: ast.AST) -> str:
        """`nl.add` -> `nki.language.add`; empty when it is not a plain dotted name of an import."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imports:
            return ""
        return ".".join([self.imports[node.id], *reversed(parts)])

    @cached_property
    def functions(self) -> dict[str, FunctionNode]:
        defined = (ast.FunctionDef, ast.AsyncFunctionDef)
        return {node.name: node for node in top_level(self.tree.body) if isinstance(node, defined)}

    def is_jit(self, node: ast.AST) -> bool:
        target = node.func if isinstance(node, ast.Call) else node
        return self.dotted(target) in ("nki.jit", "neuronxcc.nki.jit")

    @cached_property
    def entries(self) -> tuple[FunctionNode, ...]:
        """Functions that nki.jit decorates or is called on."""
        wrapped = {
            argument.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and self.is_jit(node)
            for argument in node.args
            if isinstance(argument, ast.Name)
        }
        return tuple(
            node
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and (node.name in wrapped or any(self.is_jit(d) for d in node.decorator_list))
        )

    @cached_property
    def kernels(self) -> tuple[FunctionNode, ...]:
        """The entries; in a file without any, the functions that use nki.isa or nki.language."""
        return self.entries or tuple(f for f in self.functions.values() if self._uses_nki(f))

    def _uses_nki(self, function: FunctionNode) -> bool:
        return any(
            isinstance(node, ast.Attribute) and self.dotted(node).startswith(("nki.isa.", "nki.language."))
            for statement in function.body
            for node in ast.walk(statement)
        )

    @cached_property
    def kernel_code(self) -> tuple[FunctionNode, ...]:
        """The kernels and every function of the file that they reach by name; the compiler inlines them."""
        found: dict[str, FunctionNode] = {}
        waiting = list(self.kernels)
        while waiting:
            function = waiting.pop()
            if function.name in found:
                continue
            found[function.name] = function
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and node.id in self.functions:
                    waiting.append(self.functions[node.id])
        return tuple(found.values())

    def in_kernels(self) -> Iterator[ast.AST]:
        """Every node of kernel code, once."""
        return iter(self._nodes)

    @cached_property
    def _nodes(self) -> tuple[ast.AST, ...]:
        parts = (part for function in self.kernel_code for part in [*function.body, function.args])
        return tuple({id(node): node for part in parts for node in ast.walk(part)}.values())

    def at_import(self) -> Iterator[ast.AST]:
        """Every node that is evaluated when the file is imported, outside of functions and classes, but for what the
        file does as a program of its own."""
        for statement in self.tree.body:
            if not _is_program(statement) and not isinstance(
                statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            ):
                yield from ast.walk(statement)

    def calls(self) -> Iterator[tuple[ast.Call, str]]:
        """Calls in kernel code with the dotted name of what they call (empty if unknown)."""
        return iter(self._calls)

    @cached_property
    def _calls(self) -> tuple[tuple[ast.Call, str], ...]:
        return tuple((node, self.dotted(node.func)) for node in self._nodes if isinstance(node, ast.Call))
