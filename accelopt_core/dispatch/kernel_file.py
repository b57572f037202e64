"""A kernel's file as several of which one can be made: what each of its statements binds, and what its names mean.

What cannot be told apart from another file's soundly is refused by name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from accelopt_core.candidate import parsed
from accelopt_core.languages.tunables import DECLARATION, declared_tunables
from nki_sim.migrate.edits import Source

_BY_NAME = frozenset({"globals", "vars", "eval", "exec", "__import__", "locals"})
"""Of Python's functions, those that reach names by text."""
_OF_NKI = ("nki.", "neuronxcc.nki.")


class CannotJoin(Exception):
    """One line: why this file's names cannot be told from another's, or its kernel cannot be called from another."""


@dataclass(frozen=True)
class Parameter:
    name: str
    default: str | None
    """Its text; None where a caller must give a value."""
    by_keyword: bool = False


@dataclass(frozen=True, eq=False)
class TopStatement:
    """A statement at the top level of a file, or several on one line; with the comments above it."""

    nodes: tuple[ast.stmt, ...]
    begin: int
    """Where the empty lines and comments above it begin in the file's text; `start`: where it does itself."""
    start: int
    end: int
    names: Names

    @cached_property
    def node(self) -> ast.stmt | None:
        """The one that it is."""
        return self.nodes[0] if len(self.nodes) == 1 else None

    @cached_property
    def binds(self) -> frozenset[str]:
        return frozenset(self.names.top.bound)

    @cached_property
    def dump(self) -> str:
        """The same for statements that differ in white space and comments only."""
        return "".join(map(ast.dump, self.nodes))

    @property
    def only_imports(self) -> bool:
        return all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in self.nodes)


class KernelFile:
    """Raises CannotJoin."""

    def __init__(self, source: str, entry_points: tuple[str, ...]) -> None:
        self.text = source if source.endswith("\n") else f"{source}\n"
        try:
            self.tree = parsed(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise CannotJoin(f"the kernel's text cannot be parsed: {error}") from None
        self.entry = _entry(self.tree, entry_points)
        self.lines = tuple(_lines(self.tree, Source(self.text)))
        """With the docstring, `__future__`, `__all__` and `if __name__ == "__main__":`."""
        self.statements = tuple(line for line in self.lines if not _is_apart(line))
        self._refuse()
        if sum(self.name in each.binds for each in self.statements) != 1:
            raise CannotJoin(f"{self.name} is bound again after its def")
        self.decorators = self._decorators()

    @property
    def name(self) -> str:
        """Of the kernel."""
        return self.entry.name

    @cached_property
    def all_names(self) -> frozenset[str]:
        """Every word of the file that is a name of anything."""
        return frozenset(_words(self.tree))

    @cached_property
    def bound(self) -> frozenset[str]:
        """The names of its top level."""
        return frozenset[str]().union(*(each.binds for each in self.lines))

    @cached_property
    def free(self) -> frozenset[str]:
        """Names that it takes from Python itself, and any that are missing."""
        return frozenset(name.id for each in self.lines for name in each.names.outside()) - self.bound

    @cached_property
    def imported(self) -> Mapping[str, str]:
        """At the top level, and by nothing else bound there: where each name comes from."""
        origins: dict[str, set[str]] = defaultdict(set)
        for line in self.lines:
            for name, found in line.names.top.bound.items():
                origins[name] |= found
        return {name: min(found) for name, found in origins.items() if len(found) == 1 and "" not in found}

    def uses(self, line: TopStatement) -> frozenset[str]:
        """Names of the file's own top level."""
        return frozenset(name.id for name in line.names.outside()) & self.bound

    @cached_property
    def changed(self) -> frozenset[str]:
        """Names of things that are not as their own statement left them: of which it sets attributes or items anywhere,
        or that its top level hands to something that may; and whatever else those are names for."""
        names = set(_stored_into(self.tree))
        plain = (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom)
        for each in self.statements:
            if not all(isinstance(node, plain) for node in each.nodes):
                names |= self.uses(each)
        while True:
            more = frozenset[str]().union(*(self.uses(each) for each in self.statements if _is_alias(each, names)))
            if more <= names:
                return frozenset(names)
            names |= more

    @cached_property
    def future(self) -> frozenset[str]:
        """What it imports from `__future__`."""
        return frozenset[str]().union(*(line.binds for line in self.lines if _is_future(line)))

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Of the kernel; those that only a keyword gives come last."""
        given = self.entry.args
        if given.vararg is not None or given.kwarg is not None:
            raise CannotJoin(f"{self.name} takes any number of arguments (*args or **kwargs)")
        plain = [*given.posonlyargs, *given.args]
        defaults = [*[None] * (len(plain) - len(given.defaults)), *given.defaults, *given.kw_defaults]
        return tuple(
            Parameter(each.arg, ast.unparse(default) if default is not None else None, each not in plain)
            for each, default in zip((*plain, *given.kwonlyargs), defaults)
        )

    @cached_property
    def told_from_none(self) -> frozenset[str]:
        """Parameters that may be None: by their default, or as the kernel compares them with it."""
        compared = (
            {each.id for each in sides if isinstance(each, ast.Name)}
            for node in ast.walk(self.entry)
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
            for call in ast.walk(self.entry)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            and call.func.id in ("isinstance", "hasattr", "type")
            and call.args and isinstance(call.args[0], ast.Name)
        )  # fmt: skip

    @cached_property
    def declaration(self) -> TopStatement | None:
        """Of its tunables, where there is one, which does nothing else, and nobody reads it."""
        found = [each for each in self.statements if DECLARATION in each.binds]
        read = any(DECLARATION in self.uses(each) for each in self.statements if each not in found)
        return found[0] if len(found) == 1 and found[0].binds == {DECLARATION} and not read else None

    @cached_property
    def tunables(self) -> Mapping[str, tuple[int, ...]]:
        """Legal values by name, of those that a search may change."""
        declared = declared_tunables(self.text).tunables if self.declaration is not None else ()
        return {each.name: each.legal for each in declared}

    def by_position(self, count: int) -> tuple[Parameter, ...]:
        """The parameters that so many arguments are for. Raises CannotJoin where it cannot be called with those."""
        plain = [each for each in self.parameters if not each.by_keyword]
        if count > len(plain):
            raise CannotJoin(f"it takes {len(plain)} arguments by position, and the reference gives it {count}")
        for each in self.parameters:
            if each.default is None and each not in plain[:count]:
                raise CannotJoin(f"the reference gives it no {each.name}, which has no default")
        return tuple(plain[:count])

    # --- reading ----------------------------------------------------------------------------------

    def _decorators(self) -> tuple[tuple[ast.expr, ...], tuple[ast.expr, ...]]:
        """NKI's, which come first and go to whoever is called from outside; and those that stay with the body."""
        given = self.entry.decorator_list
        of_nki = [self._is_of_nki(each) for each in given]
        outer = of_nki.index(False) if False in of_nki else len(given)
        if any(of_nki[outer:]):
            raise CannotJoin(f"{self.name} has a decorator around that of NKI")
        return tuple(given[:outer]), tuple(given[outer:])

    def _is_of_nki(self, decorator: ast.expr) -> bool:
        first, _, rest = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator).partition(".")
        return f"{self.imported.get(first, '')}.{rest}".startswith(_OF_NKI)

    def _refuse(self) -> None:
        if patched := set(_stored_into(self.tree)) & self.imported.keys():
            raise CannotJoin(f"it changes what it imports as {min(patched)}, for every other kernel as well")
        if hidden := {name for line in self.lines for each in line.names.classes for name in each.bound} & self.bound:
            raise CannotJoin(f"a class binds {min(hidden)}, which is a name of the file as well")
        if by_name := self.free & _BY_NAME:
            raise CannotJoin(f"it reaches names by their text, with {min(by_name)}()")
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                raise CannotJoin("it has `from ... import *`: nobody knows which names that binds")
            if isinstance(node, ast.Global):
                raise CannotJoin(f"it changes {node.names[0]} of the file from inside a function")
            if isinstance(node, ast.ClassDef):
                for word in _words(node):
                    if word.startswith("__") and not word.endswith("__"):
                        raise CannotJoin(f"in a class {word} is another name than it says")
        for line in self.tree.body:
            if not isinstance(line, (ast.FunctionDef, ast.ClassDef)) and not is_main(line):
                for node in ast.walk(line):
                    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                        raise CannotJoin(f"{node.name} is defined in a block of the file's top level")


def _entry(tree: ast.Module, entry_points: tuple[str, ...]) -> ast.FunctionDef:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for name in entry_points:
        found = [function for function in functions if function.name == name]
        if len(found) == 1:
            return found[0]
        if found:
            raise CannotJoin(f"{name} is defined {len(found)} times")
    raise CannotJoin(f"no function called {' or '.join(entry_points)} at the top level")


def _lines(tree: ast.Module, source: Source) -> Iterator[TopStatement]:
    together: list[list[ast.stmt]] = []
    for node in tree.body:
        if together and node.lineno == together[-1][-1].end_lineno:
            together[-1].append(node)
        else:
            together.append([node])
    begin = 0
    for nodes in together:
        start, end = source.lines_of(nodes[0])[0], source.lines_of(nodes[-1])[1]
        if decorators := getattr(nodes[0], "decorator_list", ()):
            start = source.offset(decorators[0].lineno, 0)
        yield TopStatement(tuple(nodes), begin, start, end, Names(nodes))
        begin = end


def _is_alias(line: TopStatement, names: set[str]) -> bool:
    return isinstance(line.nodes[0], (ast.Assign, ast.AnnAssign)) and bool(line.binds & names)


def _stored_into(tree: ast.Module) -> Iterator[str]:
    """Names of the things whose attributes or items are set or deleted; variables of the environment are no such
    things, and what a file sets there no kernel calls."""
    for node in ast.walk(tree):
        inner: ast.AST | None = None
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            inner = None if isinstance(node, ast.Subscript) and _is_environment(node.value) else node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            inner = node.args[0] if node.args else None
        while isinstance(inner, (ast.Attribute, ast.Subscript)):
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield inner.id


def _is_environment(node: ast.expr) -> bool:
    return ast.unparse(node) == "os.environ"


def _words(tree: ast.AST) -> Iterator[str]:
    """Whatever is text in a syntax tree, but for the values of literals."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant):
            for _, value in ast.iter_fields(node):
                for word in value if isinstance(value, list) else (value,):
                    if isinstance(word, str):
                        yield from word.split(".")


def _is_apart(line: TopStatement) -> bool:
    """Docstring, `__future__`, `__all__`, or a test at the end."""
    node = line.nodes[0]
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and line.begin == 0
    return docstring or _is_future(line) or is_main(node) or line.binds == {"__all__"}


def _is_future(line: TopStatement) -> bool:
    return isinstance(line.nodes[0], ast.ImportFrom) and line.nodes[0].module == "__future__"


def is_main(line: ast.stmt) -> bool:
    """`if __name__ == "__main__":`"""
    if not (isinstance(line, ast.If) and not line.orelse and isinstance(line.test, ast.Compare)):
        return False
    sides = {ast.unparse(each) for each in (line.test.left, *line.test.comparators)}
    return sides == {"__name__", "'__main__'"} and isinstance(line.test.ops[0], ast.Eq)


@dataclass(eq=False)
class Scope:
    """Names are read in it and bound; those that it does not bind are of the scope around it, if not of the file."""

    outer: Scope | None = None
    kind: type[ast.AST] = ast.Module
    bound: dict[str, set[str]] = field(default_factory=dict)
    """Of each name where it is imported from, in full; empty text where it is bound in any other way."""
    read: list[ast.Name] = field(default_factory=list)
    """Assigned names too."""

    def home(self, name: str) -> Scope | None:
        """The scope inside the statement that binds it; functions do not see the class that they are in."""
        scope: Scope | None = self
        while scope is not None and (name not in scope.bound or (scope.kind is ast.ClassDef and scope is not self)):
            scope = scope.outer
        return scope

    def bind(self, name: str, origin: str = "") -> None:
        self.bound.setdefault(name, set()).add(origin)


class Names(ast.NodeVisitor):
    """Reads a statement, or several that stand on one line. `global` and `nonlocal` are left to who asks."""

    def __init__(self, statements: Iterable[ast.stmt]) -> None:
        self.top = Scope()
        self.classes: list[Scope] = []
        self._scopes: list[Scope] = []
        self._scope = self.top
        self._inside(self.top, statements)

    def outside(self) -> Iterator[ast.Name]:
        """Those that nothing inside a function, class or comprehension of the statement binds: of its top level, or of
        the rest of the file, or of Python."""
        return (name for scope in self._scopes for name in scope.read if scope.home(name.id) in (None, self.top))

    def _inside(self, scope: Scope, nodes: Iterable[ast.AST]) -> None:
        self._scopes.append(scope)
        self._scope, before = scope, self._scope
        for node in nodes:
            self.visit(node)
        self._scope = before

    def visit_Name(self, node: ast.Name) -> None:
        self._scope.read.append(node)
        if not isinstance(node.ctx, ast.Load):
            self._scope.bind(node.id)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        home = self._scope
        while home.kind is ast.comprehension and home.outer is not None:
            home = home.outer
        home.bind(node.target.id)
        self._scope.read.append(node.target)
        self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._scope.bind(node.name)
        for part in (*node.decorator_list, *((node.returns,) if node.returns is not None else ())):
            self.visit(part)
        self._function(node.args, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node.args, [node.body])

    def _function(self, given: ast.arguments, body: Iterable[ast.AST]) -> None:
        self.visit(given)  # defaults and annotations
        inner = Scope(self._scope, ast.FunctionDef)
        for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
            if each is not None:
                inner.bind(each.arg)
        self._inside(inner, body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.bind(node.name)
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        self.classes.append(Scope(self._scope, ast.ClassDef))
        self._inside(self.classes[-1], node.body)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        first, *others = node.generators
        self.visit(first.iter)
        made = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        self._inside(Scope(self._scope, ast.comprehension), chain((first.target, *first.ifs), others, made))

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            first = alias.name.partition(".")[0]
            self._scope.bind(alias.asname or first, alias.name if alias.asname else first)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        within = "." * node.level + (f"{node.module}." if node.module else "")
        for alias in node.names:
            self._scope.bind(alias.asname or alias.name, f"{within}{alias.name}")

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            self._scope.bind(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self._scope.bind(node.rest)
        super().generic_visit(node)
