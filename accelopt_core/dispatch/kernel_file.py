"""A kernel's file as several of which one can be made: what each of its statements binds, and what its names mean.

What cannot be told apart from another file's soundly is refused by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from accelopt_core.candidate import parsed
from accelopt_core.transforms.base import NotAKernel, parse_kernel
from accelopt_core.transforms.kernel_code import find_kernel
from accelopt_core.transforms.scopes import Scopes, bound_by
from accelopt_core.transforms.syntax import children, descendants, parents_in

TUNABLES = "TUNABLES"
_BY_NAME = frozenset({"globals", "vars", "eval", "exec", "__import__", "locals"})
"""Of Python's functions, those that reach names by text."""
_OF_NKI = ("nki.", "neuronxcc.nki.")
_INNER = (cst.FunctionDef, cst.ClassDef, cst.Lambda, cst.BaseComp)


class CannotJoin(Exception):
    """One line: why this file's names cannot be told from another's, or its kernel cannot be called from another."""


@dataclass(frozen=True)
class Parameter:
    name: str
    default: str | None
    """Its text; None where a caller must give a value."""
    by_keyword: bool = False


@dataclass(frozen=True)
class TopStatement:
    """A statement at the top level of a file."""

    node: cst.SimpleStatementLine | cst.BaseCompoundStatement
    binds: frozenset[str]
    uses: frozenset[str]
    """Names of the file's own top level."""
    text: str
    """Of its syntax tree: the same for statements that differ in white space and comments only."""
    imports: tuple[tuple[str, str], ...] | None
    """If it imports and does nothing else: each name, and what it is in full."""


class KernelFile:
    """Raises CannotJoin."""

    def __init__(self, source: str, entry_points: tuple[str, ...]) -> None:
        try:
            self.module = parse_kernel(source).tree
            self.entry = find_kernel(self.module, entry_points)
        except NotAKernel as error:
            raise CannotJoin(str(error)) from None
        self.scopes = Scopes(self.module)
        self._refuse()
        self.statements = tuple(map(self._statement, self._plain()))
        if sum(self.name in each.binds for each in self.statements) != 1:
            raise CannotJoin(f"{self.name} is bound again after its def")
        self.decorators = self._decorators()

    @property
    def name(self) -> str:
        """Of the kernel."""
        return self.entry.name.value

    @cached_property
    def all_names(self) -> frozenset[str]:
        """Every word of the file that is a name of anything."""
        return frozenset(node.value for node in descendants(self.module) if isinstance(node, cst.Name))

    @cached_property
    def free(self) -> frozenset[str]:
        """Names that it takes from Python itself, and any that are missing."""
        names = (node for node in descendants(self.module) if isinstance(node, cst.Name))
        return frozenset(node.value for node in names if self.scopes.is_free(node))

    @cached_property
    def changed(self) -> frozenset[str]:
        """Names of things that are not as their own statement left them: of which it sets attributes or items anywhere,
        or that its top level hands to something that may; and whatever else those are names for."""
        names = set(_stored_into(parsed(self.module.code)))
        for each in self.statements:
            if isinstance(each.node, (cst.FunctionDef, cst.ClassDef)) or each.imports is not None:
                continue
            small = each.node.body[0] if isinstance(each.node, cst.SimpleStatementLine) else None
            if not isinstance(small, (cst.Assign, cst.AnnAssign, cst.ImportFrom, cst.Import)):
                names |= each.uses
        while True:
            more = frozenset[str]().union(*(each.uses for each in self.statements if self._is_alias(each, names)))
            if more <= names:
                return frozenset(names)
            names |= more

    def _is_alias(self, line: TopStatement, names: set[str]) -> bool:
        small = line.node.body[0] if isinstance(line.node, cst.SimpleStatementLine) else None
        return isinstance(small, (cst.Assign, cst.AnnAssign)) and bool(line.binds & names)

    @cached_property
    def future(self) -> frozenset[str]:
        """What it imports from `__future__`."""
        return frozenset(
            origin
            for line in self.module.body
            if _is_future(line)
            for _, origin in _imports(line)
        )  # fmt: skip

    @cached_property
    def main(self) -> tuple[cst.BaseStatement, ...]:
        """Its `if __name__ == "__main__":` blocks."""
        return tuple(line for line in self.module.body if _is_main(line))

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Of the kernel; those that only a keyword gives come last."""
        given = self.entry.params
        if isinstance(given.star_arg, cst.Param) or given.star_kwarg is not None:
            raise CannotJoin(f"{self.name} takes any number of arguments (*args or **kwargs)")
        plain = [*given.posonly_params, *given.params]
        return tuple(
            Parameter(each.name.value, self.code(each.default) if each.default is not None else None, each not in plain)
            for each in (*plain, *given.kwonly_params)
        )

    @cached_property
    def told_from_none(self) -> frozenset[str]:
        """Parameters that may be None: by their default, or as the kernel compares them with it."""
        compared = (
            {each.id for each in sides if isinstance(each, ast.Name)}
            for node in ast.walk(parsed(self.code(self.entry)))
            if isinstance(node, ast.Compare)
            and any(isinstance(each, ast.Constant) and each.value is None for each in (node.left, *node.comparators))
            for sides in [(node.left, *node.comparators)]
        )
        named = frozenset[str]().union(*compared)
        return frozenset(each.name for each in self.parameters if each.default is not None or each.name in named)

    @cached_property
    def told_by_kind(self) -> frozenset[str]:
        """Parameters that the kernel asks the type of."""
        return frozenset(
            call.args[0].id
            for call in ast.walk(parsed(self.code(self.entry)))
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            and call.func.id in ("isinstance", "hasattr", "type")
            and call.args and isinstance(call.args[0], ast.Name)
        )  # fmt: skip

    @cached_property
    def tunables(self) -> Mapping[str, tuple[int, ...]]:
        """Declared, and by name; empty where the declaration cannot be read off, or is made of more than one line."""
        found = [each for each in self.statements if TUNABLES in each.binds]
        if len(found) != 1 or any(TUNABLES in each.uses - each.binds for each in self.statements):
            return {}
        (line,) = found
        small = line.node.body[0] if isinstance(line.node, cst.SimpleStatementLine) else None
        if not isinstance(small, (cst.Assign, cst.AnnAssign)) or small.value is None or line.binds != {TUNABLES}:
            return {}
        try:
            values = ast.literal_eval(self.code(small.value).strip())
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return {}
        if not isinstance(values, dict):
            return {}
        return {str(name): tuple(legal) for name, legal in values.items() if isinstance(legal, (tuple, list))}

    def by_position(self, count: int) -> tuple[Parameter, ...]:
        """The parameters that so many arguments are for. Raises CannotJoin where it cannot be called with those."""
        plain = [each for each in self.parameters if not each.by_keyword]
        if count > len(plain):
            raise CannotJoin(f"it takes {len(plain)} arguments by position, and the reference gives it {count}")
        for each in self.parameters:
            if each.default is None and each not in plain[:count]:
                raise CannotJoin(f"the reference gives it no {each.name}, which has no default")
        return tuple(plain[:count])

    def code(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)

    # --- reading ----------------------------------------------------------------------------------

    def _plain(self) -> Iterator[cst.SimpleStatementLine | cst.BaseCompoundStatement]:
        """Its statements without docstring, `__future__`, `__all__` and tests at the end."""
        for place, line in enumerate(self.module.body):
            if (place == 0 and _is_text(line)) or _is_future(line) or _is_main(line) or _binds(line) == {"__all__"}:
                continue
            assert isinstance(line, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
            yield line

    def _statement(self, node: cst.SimpleStatementLine | cst.BaseCompoundStatement) -> TopStatement:
        names = (each for each in descendants(node) if isinstance(each, cst.Name))
        uses = frozenset(each.value for each in names if self.scopes.is_global(each))
        only_imports = isinstance(node, cst.SimpleStatementLine) and all(
            isinstance(small, (cst.Import, cst.ImportFrom)) for small in node.body
        )
        text = ast.dump(parsed(self.code(node)))
        return TopStatement(node, _binds(node), uses, text, tuple(_imports(node)) if only_imports else None)

    def _decorators(self) -> tuple[tuple[cst.Decorator, ...], tuple[cst.Decorator, ...]]:
        """NKI's, which come first and go to whoever is called from outside; and those that stay with the body."""
        given = list(self.entry.decorators)
        of_nki = [self._is_of_nki(each) for each in given]
        outer = of_nki.index(False) if False in of_nki else len(given)
        if any(of_nki[outer:]):
            raise CannotJoin(f"{self.name} has a decorator around that of NKI")
        return tuple(given[:outer]), tuple(given[outer:])

    def _is_of_nki(self, decorator: cst.Decorator) -> bool:
        called = decorator.decorator
        return self.scopes.qualified(called.func if isinstance(called, cst.Call) else called).startswith(_OF_NKI)

    def _refuse(self) -> None:
        if patched := set(_stored_into(parsed(self.module.code))) & self.scopes.imported().keys():
            raise CannotJoin(f"it changes what it imports as {min(patched)}, for every other kernel as well")
        if hidden := self.scopes.hidden_by_classes:
            raise CannotJoin(f"a class binds {min(hidden)}, which is a name of the file as well")
        parents = parents_in(self.module)
        for node in descendants(self.module):
            if isinstance(node, cst.ImportStar):
                raise CannotJoin("it has `from ... import *`: nobody knows which names that binds")
            if isinstance(node, cst.Global):
                raise CannotJoin(f"it changes {node.names[0].name.value} of the file from inside a function")
            if isinstance(node, cst.Name):
                if node.value in _BY_NAME and self.scopes.qualified(node) == f"builtins.{node.value}":
                    raise CannotJoin(f"it reaches names by their text, with {node.value}()")
                if node.value.startswith("__") and not node.value.endswith("__") and _in_a_class(node, parents):
                    raise CannotJoin(f"in a class {node.value} is another name than it says")
        for line in self.module.body:
            inside = line.body if isinstance(line, (cst.FunctionDef, cst.ClassDef)) else line
            if inside is line and not isinstance(line, cst.SimpleStatementLine) and not _is_main(line):
                for node in descendants(line):
                    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
                        raise CannotJoin(f"{node.name.value} is defined in a block of the file's top level")


def _stored_into(tree: ast.Module) -> Iterator[str]:
    """Names of the things whose attributes or items are set or deleted."""
    for node in ast.walk(tree):
        inner: ast.AST | None = None
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            inner = node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            inner = node.args[0] if node.args else None
        while isinstance(inner, (ast.Attribute, ast.Subscript)):
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield inner.id


def _in_a_class(node: cst.CSTNode, parents: Mapping[cst.CSTNode, cst.CSTNode]) -> bool:
    while node in parents:
        node = parents[node]
        if isinstance(node, cst.ClassDef):
            return True
    return False


def _is_text(line: cst.BaseStatement | cst.BaseSmallStatement) -> bool:
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    return isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))


def _is_future(line: cst.BaseStatement | cst.BaseSmallStatement) -> bool:
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    return (
        isinstance(small, cst.ImportFrom) and isinstance(small.module, cst.Name) and small.module.value == "__future__"
    )


def _is_main(line: cst.CSTNode) -> bool:
    if not (isinstance(line, cst.If) and line.orelse is None and isinstance(line.test, cst.Comparison)):
        return False
    test = line.test
    sides = (test.left, *(each.comparator for each in test.comparisons))
    said = {
        side.value if isinstance(side, cst.Name) else side.evaluated_value
        for side in sides
        if isinstance(side, (cst.Name, cst.SimpleString))
    }
    return said == {"__name__", "__main__"} and isinstance(test.comparisons[0].operator, cst.Equal)


def _binds(line: cst.CSTNode) -> frozenset[str]:
    """At the level that it stands on."""
    names: set[str] = set()
    waiting: list[cst.CSTNode] = [line]
    while waiting:
        node = waiting.pop()
        names |= bound_by(node)
        if not isinstance(node, _INNER):
            waiting += children(node)
    return frozenset(names)


def _imports(line: cst.CSTNode) -> Iterator[tuple[str, str]]:
    """As the whole statement has them: the name, and where it comes from."""
    scopes = Scopes(cst.Module([line])) if isinstance(line, cst.BaseStatement) else None  # type: ignore[list-item]
    yield from (scopes.imported().items() if scopes is not None else ())
