"""The @triton.jit functions of a file, found in its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from accelopt_core.candidate import parsed


class SourceRefused(Exception):
    """Something in the text of a kernel that may not be there: what, and in which line of its file."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


JIT = frozenset(["triton.jit", "triton.runtime.jit.jit", "triton.runtime.jit"])
AROUND_JIT = frozenset(["triton.autotune", "triton.heuristics", "triton.runtime.autotune", "triton.runtime.heuristics"])
"""Decorators that choose a kernel's arguments; the trace has applied them."""

KEPT_OPTIONS = ("do_not_specialize", "do_not_specialize_on_alignment", "noinline")
"""Of triton.jit: they change what is compiled."""
DROPPED_OPTIONS = ("version", "repr", "launch_metadata")
"""Of triton.jit: names for profilers."""


@dataclass(frozen=True)
class JitFunction:
    """A function as its file has it."""

    node: ast.FunctionDef
    decorator: str
    """`@triton.jit(...)` with what of its options changes the code."""

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def parameters(self) -> list[str]:
        given = self.node.args
        return [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names that it reads and does not bind itself: globals and builtins, in the order of their first use."""
        bound = set(self.parameters)
        if self.node.args.vararg is not None:
            bound.add(self.node.args.vararg.arg)
        for node in ast.walk(self.node):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
        defaults = [*self.node.args.defaults, *filter(None, self.node.args.kw_defaults)]
        inside = [
            node.id
            for statement in self.node.body
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and node.id not in bound
        ]
        outside = [node.id for tree in defaults for node in ast.walk(tree) if isinstance(node, ast.Name)]
        return tuple(dict.fromkeys([*outside, *inside]))


class SourceFile:
    """One file's functions, by name."""

    def __init__(self, text: str) -> None:
        """Raises SourceRefused for text that is no Python."""
        self.text = text
        try:
            self._tree = parsed(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise SourceRefused(
                f"the file is no Python: {getattr(error, 'msg', None) or error}", getattr(error, "lineno", None)
            ) from None
        self._imports = dict(_imports(self._tree))

    def function(self, name: str) -> JitFunction:
        """Raises SourceRefused where the file has no such function at its top level, once and decorated."""
        found = [node for node in self._tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
        if len(found) > 1:
            raise SourceRefused(f"two functions are called {name}: a launch would not say which", found[1].lineno)
        if not found:
            hidden = next((n for n in ast.walk(self._tree) if isinstance(n, ast.FunctionDef) and n.name == name), None)
            if hidden is not None:
                raise SourceRefused(
                    f"the kernel {name} is defined inside something else: define it at the top of the file",
                    hidden.lineno,
                )
            raise SourceRefused(f"the file defines no kernel {name} at its top level")
        return JitFunction(found[0], self._decorator(found[0]))

    def _decorator(self, node: ast.FunctionDef) -> str:
        written = None
        for each in node.decorator_list:
            call = each if isinstance(each, ast.Call) else None
            dotted = self.dotted(call.func if call is not None else each)
            if dotted in AROUND_JIT:
                continue
            if dotted not in JIT or written is not None:
                said = ast.unparse(each)[:60]
                raise SourceRefused(f"the kernel {node.name} is decorated with {said}: only triton's own", each.lineno)
            written = "@triton.jit" if call is None else self._options(call)
        if written is None:
            raise SourceRefused(f"{node.name} is no kernel: decorate it with @triton.jit", node.lineno)
        return written

    def _options(self, call: ast.Call) -> str:
        kept = []
        if call.args:
            raise SourceRefused("triton.jit takes its options by name", call.lineno)
        for option in call.keywords:
            if option.arg in DROPPED_OPTIONS:
                continue
            if option.arg not in KEPT_OPTIONS:
                raise SourceRefused(f"triton.jit({option.arg}=...) is refused", call.lineno)
            try:
                kept.append(f"{option.arg}={ast.literal_eval(option.value)!r}")
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                raise SourceRefused(f"triton.jit({option.arg}=...): a literal", call.lineno) from None
        return f"@triton.jit({', '.join(kept)})"

    def dotted(self, node: ast.expr) -> str:
        """`triton.jit` of whatever name it was imported by; empty for an expression that is no dotted name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self._imports.get(node.id, node.id), *parts])


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Local name -> what it stands for, of imports anywhere in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname is not None:
                    yield alias.asname, alias.name
                else:
                    first = alias.name.partition(".")[0]
                    yield first, first
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
