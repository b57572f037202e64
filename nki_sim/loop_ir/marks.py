"""Where a traced kernel's `for` loops begin, go on and end: hints for reading its rows back as loops.

Every iterable of a `for` statement or comprehension is wrapped when a kernel's file is compiled. A mark changes no row,
and nothing that is judged rests on one: a tree that is read by them is held against the rows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any

from nki_sim.session import Tracer, active

MARK = "__nki_sim_loop__"
"""What an iterable is wrapped in."""
FIELDS = 4
"""Numbers of one mark: what it is, the source line of its loop, instructions and buffers so far."""


class MarkKind(IntEnum):
    begin = 0
    a_pass = 1
    end = 2


def marked(iterable: Iterable[Any], line: int) -> Iterable[Any]:
    """The same items; each is told to the kernel's tracer before it is given."""
    tracer = active()
    if tracer is None or tracer.numbers:
        return iterable
    return _told(tracer, iterable, line)


def _told(tracer: Tracer, iterable: Iterable[Any], line: int) -> Iterator[Any]:
    _tell(tracer, MarkKind.begin, line)
    try:
        for each in iterable:
            _tell(tracer, MarkKind.a_pass, line)
            yield each
    finally:
        _tell(tracer, MarkKind.end, line)


def _tell(tracer: Tracer, kind: MarkKind, line: int) -> None:
    tracer.marks.extend((kind, line, len(tracer.template_ids), len(tracer.allocations)))


class _Wrapping(ast.NodeTransformer):
    def _wrapped(self, node: ast.expr) -> ast.expr:
        name = ast.copy_location(ast.Name(MARK, ast.Load()), node)
        line = ast.copy_location(ast.Constant(node.lineno), node)
        return ast.copy_location(ast.Call(name, [node, line], []), node)

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        node.iter = self._wrapped(node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        if not node.is_async:
            node.iter = self._wrapped(node.iter)
        return node


def marked_tree(tree: ast.Module) -> ast.Module:
    """The same with every loop's iterable wrapped, in place; `names[MARK] = marked` before it is run."""
    wrapped: ast.Module = ast.fix_missing_locations(_Wrapping().visit(tree))
    return wrapped


def compiled(source: str, file: str, names: dict[str, Any]) -> Any:
    """Code that runs in `names` and tells its loops. Raises SyntaxError."""
    names[MARK] = marked
    return compile(marked_tree(ast.parse(source, file)), file, "exec")
