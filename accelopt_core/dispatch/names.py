"""What the names in one statement of a file's top level stand for: something bound inside it, or a name of the file."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain


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
