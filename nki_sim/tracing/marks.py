"""Where a traced kernel's `for` loops begin, go on and end: hints for reading its rows back as loops.

Every iterable of a `for` statement or comprehension is wrapped when a kernel's file is compiled. A mark changes no row,
and nothing that is judged rests on one: a tree that is read by them is held against the rows.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import decode_source
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from nki_sim.tracing.session import Tracer, active

MARK = "__nki_sim_loop__"
"""What an iterable is wrapped in."""
FIELDS = 4
"""Numbers of one mark: what it is, the site of its loop, instructions and buffers so far."""
_MOST_LINES = 1 << 24
"""Of one file: sites of its neighbours are told apart by what is above it."""


class MarkKind(IntEnum):
    begin = 0
    a_pass = 1
    end = 2


def marked(iterable: Iterable[Any], site: int) -> Iterable[Any]:
    """The same items; each is told to the kernel's tracer before it is given."""
    tracer = active()
    if tracer is None or tracer.numbers:
        return iterable
    return _told(tracer, iterable, site)


def _told(tracer: Tracer, iterable: Iterable[Any], site: int) -> Iterator[Any]:
    _tell(tracer, MarkKind.begin, site)
    try:
        for each in iterable:
            _tell(tracer, MarkKind.a_pass, site)
            yield each
    finally:
        _tell(tracer, MarkKind.end, site)


def _tell(tracer: Tracer, kind: MarkKind, site: int) -> None:
    tracer.marks.extend((kind, site, len(tracer.template_ids), len(tracer.allocations)))


@dataclass(frozen=True)
class _Wrapping(ast.NodeTransformer):
    neighbour: int

    def _wrapped(self, node: ast.expr) -> ast.expr:
        name = ast.copy_location(ast.Name(MARK, ast.Load()), node)
        site = node.lineno - self.neighbour * _MOST_LINES
        return ast.copy_location(ast.Call(name, [node, ast.copy_location(ast.Constant(site), node)], []), node)

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        node.iter = self._wrapped(node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        if not node.is_async:
            node.iter = self._wrapped(node.iter)
        return node


def marked_tree(tree: ast.Module, neighbour: int = 0) -> ast.Module:
    """The same with every loop's iterable wrapped, in place; `names[MARK] = marked` before it is run."""
    wrapped: ast.Module = ast.fix_missing_locations(_Wrapping(neighbour).visit(tree))
    return wrapped


def compiled(source: str, file: str, names: dict[str, Any], neighbour: int = 0) -> Any:
    """Code that runs in `names` and tells its loops. Raises SyntaxError.

    `neighbour`: 0 for the kernel's own file, whose loops are known by their lines; a number of its own for any other
    file, whose loops have negative sites.
    """
    names[MARK] = marked
    return compile(marked_tree(ast.parse(source, file), neighbour), file, "exec")


# --- files that a kernel's file imports -----------------------------------------------------------------------------

_neighbours = count(1)


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, own: str | None) -> None:
        super().__init__(name, path)
        self._own = own

    def exec_module(self, module: ModuleType) -> None:
        if self._own is None:
            code = compiled(decode_source(self.get_data(self.path)), self.path, module.__dict__, next(_neighbours))
        else:
            code = compiled(self._own, self.path, module.__dict__)
        exec(code, module.__dict__)


@dataclass(frozen=True)
class _Finder(MetaPathFinder):
    folders: tuple[Path, ...]
    own: Mapping[Path, str]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        file = Path(spec.origin).resolve()
        if not any(folder in file.parents for folder in self.folders):
            return None
        spec.loader = _Loader(fullname, spec.origin, self.own.get(file))
        return spec


@contextmanager
def imported(folders: Iterable[Path], own: Mapping[Path, str]) -> Iterator[None]:
    """Modules of those folders that are imported in here tell their loops.

    `own`: the kernel's file, where it is imported too, with the text to run in place of its own.
    """
    finder = _Finder(tuple(each.resolve() for each in folders), {file.resolve(): text for file, text in own.items()})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
