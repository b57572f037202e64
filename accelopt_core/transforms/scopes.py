"""What the names in a module stand for: an import, a built-in function, or something that the file itself binds."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

import libcst as cst

from accelopt_core.transforms.syntax import bound_names, children

_BUILTINS = frozenset(dir(builtins))


class _Kind(Enum):
    MODULE = "module"
    FUNCTION = "function"
    CLASS = "class"
    COMPREHENSION = "comprehension"


@dataclass(eq=False)
class _Scope:
    outer: _Scope | None
    kind: _Kind
    imports: dict[str, set[str]] = field(default_factory=dict)
    """Where an imported name comes from, in full."""
    bound: set[str] = field(default_factory=set)
    """By anything but an import."""
    elsewhere: set[str] = field(default_factory=set)
    """Declared global or nonlocal."""
    used: set[str] = field(default_factory=set)

    def around(self) -> Iterator[_Scope]:
        """Itself and the scopes that Python looks in next: functions do not see the class that they are in."""
        scope: _Scope | None = self
        while scope is not None:
            if scope is self or scope.kind is not _Kind.CLASS:
                yield scope
            scope = scope.outer


class Scopes:
    """Of a whole module. Names that are bound in any other way than by an import have no qualified name."""

    def __init__(self, module: cst.Module) -> None:
        self._scope_of: dict[cst.CSTNode, _Scope] = {}
        """Of a name the one that it is read in; of a function the one that it opens."""
        self._inside: dict[_Scope, list[_Scope]] = {}
        self._global = self._opened(None, _Kind.MODULE)
        self._read(module.body, self._global)

    def qualified(self, node: cst.CSTNode) -> str:
        """`nki.isa.dma_copy` for whatever name the module imported it under; empty when ambiguous."""
        path: list[str] = []
        inner = node
        while isinstance(inner, cst.Attribute):
            path.append(inner.attr.value)
            inner = inner.value
        scope = self._scope_of.get(inner)
        if not isinstance(inner, cst.Name) or scope is None:
            return ""
        origin = self._origin(inner.value, scope)
        return ".".join([origin, *reversed(path)]) if origin else ""

    def meaning(self, name: str, function: cst.FunctionDef) -> str:
        """Of a name in a function, as `qualified` has it: `builtins.min`, unless the file binds `min`."""
        return self._origin(name, self._scope_of[function])

    def of_file(self, name: str) -> str:
        """Of a name at the top level, as `qualified` has it."""
        return self._origin(name, self._global)

    def imported(self) -> dict[str, str]:
        """At the top level, and by nothing else bound there: where each name comes from."""
        return {name: origin for name in self._global.imports if (origin := self.of_file(name))}

    def binds(self, name: str) -> bool:
        """At the top level, by anything but an import."""
        return name in self._global.bound

    def is_global(self, name: cst.Name) -> bool:
        """Whether a variable's name, read or assigned, is one that the module binds at its top level."""
        scope = self._scope_of.get(name)
        return scope is not None and self._home(name.value, scope) is self._global

    def is_free(self, name: cst.Name) -> bool:
        """Whether the file binds it nowhere that it could stand for: one of Python's own, or one that is missing."""
        scope = self._scope_of.get(name)
        return scope is not None and self._home(name.value, scope) is None

    @property
    def hidden_by_classes(self) -> frozenset[str]:
        """Names of the top level that a class body binds as well: what they stand for in it depends on the line."""
        inside = [scope for scope in self._inside if scope.kind is _Kind.CLASS]
        own = self._global.bound | self._global.imports.keys()
        return frozenset(name for scope in inside for name in (scope.bound | scope.imports.keys()) & own)

    @property
    def imported_anywhere(self) -> frozenset[str]:
        """Names that an import anywhere in the file binds."""
        return frozenset(name for scope in self._inside for name in scope.imports)

    def captured(self, function: cst.FunctionDef) -> frozenset[str]:
        """Names of the function that scopes inside it use, or that it declares global or nonlocal."""
        own = self._scope_of[function]
        names = set(own.elsewhere)
        pending = list(self._inside[own])
        while pending:
            scope = pending.pop()
            names |= {name for name in scope.used if self._home(name, scope) is own} | scope.elsewhere
            pending += self._inside[scope]
        return frozenset(names)

    def _origin(self, name: str, scope: _Scope) -> str:
        home = self._home(name, scope)
        if home is None:
            return f"builtins.{name}" if name in _BUILTINS else ""
        found = home.imports.get(name, set())
        return next(iter(found)) if len(found) == 1 and name not in home.bound else ""

    def _home(self, name: str, scope: _Scope) -> _Scope | None:
        for each in scope.around():
            if name not in each.elsewhere and (name in each.bound or name in each.imports):
                return each
        return None

    # --- reading ----------------------------------------------------------------------------------

    def _opened(self, outer: _Scope | None, kind: _Kind) -> _Scope:
        scope = _Scope(outer, kind)
        self._inside[scope] = []
        if outer is not None:
            self._inside[outer].append(scope)
        return scope

    def _read(self, nodes: Iterable[cst.CSTNode], scope: _Scope) -> None:
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if type(node) in _SPECIAL:
                stack += self._read_special(node, scope)
            else:
                stack += children(node)

    def _read_special(self, node: cst.CSTNode, scope: _Scope) -> Iterable[cst.CSTNode]:
        """What of the node is still to be read in this scope."""
        if isinstance(node, cst.Name):
            self._scope_of[node] = scope
            scope.used.add(node.value)
            return ()
        if isinstance(node, (cst.Attribute, cst.Arg)):
            return (node.value,)
        if isinstance(node, (cst.Import, cst.ImportFrom)):
            for name, origin in _imported(node):
                scope.imports.setdefault(name, set()).add(origin)
            return ()
        if isinstance(node, (cst.Global, cst.Nonlocal)):
            scope.elsewhere |= {item.name.value for item in node.names}
            if isinstance(node, cst.Global):
                self._global.bound |= scope.elsewhere
            return ()
        if isinstance(node, cst.FunctionDef):
            scope.bound.add(node.name.value)
            self._enter(node, node.params, (node.body,), scope)
            return (*node.decorators, *_outside(node.params), *((node.returns,) if node.returns is not None else ()))
        if isinstance(node, cst.Lambda):
            self._enter(node, node.params, (node.body,), scope)
            return _outside(node.params)
        if isinstance(node, cst.ClassDef):
            scope.bound.add(node.name.value)
            self._read((node.body,), self._opened(scope, _Kind.CLASS))
            return (*node.decorators, *node.bases, *node.keywords)
        if isinstance(node, (cst.BaseSimpleComp, cst.DictComp)):
            inner = self._opened(scope, _Kind.COMPREHENSION)
            first = node.for_in
            made = (node.key, node.value) if isinstance(node, cst.DictComp) else (node.elt,)
            self._read((*made, *(each for each in children(first) if each is not first.iter)), inner)
            inner.bound |= bound_by(first)
            return (first.iter,)
        if isinstance(node, cst.NamedExpr):
            home = scope
            while home.kind is _Kind.COMPREHENSION and home.outer is not None:
                home = home.outer
            home.bound |= bound_by(node)
        else:
            scope.bound |= bound_by(node)
        return children(node)

    def _enter(self, node: cst.CSTNode, parameters: cst.Parameters, body: Iterable[cst.CSTNode], scope: _Scope) -> None:
        inner = self._scope_of[node] = self._opened(scope, _Kind.FUNCTION)
        inner.bound |= {each.name.value for each in _each(parameters)}
        self._read(body, inner)


_SPECIAL = frozenset(
    {
        cst.AnnAssign,
        cst.Arg,
        cst.AsName,
        cst.AssignTarget,
        cst.Attribute,
        cst.AugAssign,
        cst.ClassDef,
        cst.CompFor,
        cst.DictComp,
        cst.For,
        cst.FunctionDef,
        cst.GeneratorExp,
        cst.Global,
        cst.Import,
        cst.ImportFrom,
        cst.Lambda,
        cst.ListComp,
        cst.MatchAs,
        cst.MatchStar,
        cst.Name,
        cst.NamedExpr,
        cst.Nonlocal,
        cst.SetComp,
    }
)


def _each(parameters: cst.Parameters) -> Iterator[cst.Param]:
    stars = (parameters.star_arg, parameters.star_kwarg)
    yield from (*parameters.posonly_params, *parameters.params, *parameters.kwonly_params)
    yield from (each for each in stars if isinstance(each, cst.Param))


def _outside(parameters: cst.Parameters) -> list[cst.CSTNode]:
    """Defaults and annotations, which belong to the scope around the function."""
    return [part for each in _each(parameters) for part in (each.default, each.annotation) if part is not None]


_BINDS = frozenset(
    {
        cst.AnnAssign, cst.AsName, cst.AssignTarget, cst.AugAssign, cst.ClassDef, cst.CompFor, cst.For, cst.FunctionDef,
        cst.ImportAlias, cst.MatchAs, cst.MatchStar, cst.NamedExpr, cst.Param,
    }
)  # fmt: skip


def bound_by(node: cst.CSTNode) -> frozenset[str]:
    """Names that the node itself binds, not counting what stands in it."""
    if type(node) not in _BINDS:
        return frozenset()
    if isinstance(node, (cst.AnnAssign, cst.AssignTarget, cst.AugAssign, cst.CompFor, cst.For, cst.NamedExpr)):
        return bound_names(node.target)
    if isinstance(node, cst.AsName):
        return bound_names(node.name)
    if isinstance(node, (cst.ClassDef, cst.FunctionDef, cst.Param)):
        return bound_names(node.name)
    if isinstance(node, (cst.MatchAs, cst.MatchStar)) and node.name is not None:
        return bound_names(node.name)
    if isinstance(node, cst.ImportAlias) and node.asname is None:
        return frozenset({_dotted(node.name).partition(".")[0]})
    return frozenset()


def _imported(node: cst.Import | cst.ImportFrom) -> Iterator[tuple[str, str]]:
    """Each name that it binds, and where that comes from. A star binds what nobody knows."""
    module = ""
    if isinstance(node, cst.ImportFrom):
        module = "." * len(node.relative) + (_dotted(node.module) if node.module is not None else "")
        module += "." if module and not module.endswith(".") else ""
    for alias in node.names if not isinstance(node.names, cst.ImportStar) else ():
        name = _dotted(alias.name)
        if alias.asname is not None:
            yield from ((bound, module + name) for bound in bound_names(alias.asname.name))
        elif isinstance(node, cst.ImportFrom):
            yield name, module + name
        else:
            top = name.partition(".")[0]
            yield top, top


def _dotted(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    assert isinstance(node, cst.Name)
    return node.value
