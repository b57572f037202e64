"""Functions that a kernel's file imports from its neighbours, and how the kernel's file says what they are made of.

    # helpers.py                                      # kernel.py
    import nki.language as nl                         from .helpers import tile_of, ROWS
    from .sizes import ROWS                           import nki.language as lang

    def tile_of(width):                               def tile_of(width):
        return nl.ndarray((ROWS, width))      ->          return lang.ndarray((ROWS, width))

A name that the kernel's file has no import for gets one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial

import libcst as cst

from accelopt_core.task import Surroundings
from accelopt_core.transforms.scopes import Scopes
from accelopt_core.transforms.substitution import substituted
from accelopt_core.transforms.syntax import descendants

_MOST_STEPS = 8
"""From a name to where it is defined, by files that import it only to hand it on."""


@dataclass(frozen=True)
class _File:
    module: str
    """How it is imported, in full."""
    is_package: bool
    tree: cst.Module
    scopes: Scopes

    def absolute(self, origin: str) -> str:
        """Of what the file imports, without leading dots."""
        level = len(origin) - len(origin.lstrip("."))
        if not level:
            return origin
        parts = self.module.split(".")
        inside = parts[: len(parts) - level + self.is_package]
        return ".".join([*inside, origin[level:]])


@dataclass(frozen=True)
class ForeignClass:
    """Of a neighbour."""

    node: cst.ClassDef
    scopes: Scopes
    """Of its file."""
    in_own_words: Callable[[cst.FunctionDef, frozenset[str]], cst.FunctionDef | None]
    """One of its functions, given what that takes from its file, as the kernel's file would say it."""


@dataclass
class Neighbours:
    """Of one kernel's file. What is asked for a function notes which imports it needs."""

    tree: cst.Module
    around: Surroundings
    imports: dict[str, str] = field(default_factory=dict)
    """A line for each name that the kernel's file has none for."""

    def __post_init__(self) -> None:
        self._own = _File(self.around.module, False, self.tree, Scopes(self.tree))
        self._texts = dict(self.around.neighbours)
        self._names = {name: self._canonical(origin) for name, origin in self._own.scopes.imported().items()}
        self._taken = {node.value for node in descendants(self.tree) if isinstance(node, cst.Name)}

    def function(self, called: str, free_names: Callable[[cst.FunctionDef], frozenset[str]]) -> cst.FunctionDef | None:
        """What the kernel's file calls by that text, in its own words.

        `free_names`: those that a function takes from its file. None where it is no function of a neighbour's, or where
        the kernel's file cannot say what it needs.
        """
        base, _, rest = called.partition(".")
        origin = self._names.get(base)
        found = self._defined(f"{origin}.{rest}" if rest else origin) if origin else None
        if found is None:
            return None
        file, function = found
        return self._in_own_words(file, function, free_names(function))

    def class_of(self, called: str) -> ForeignClass | None:
        """What the kernel's file calls a class by that name; None where that is no class of a neighbour's."""
        origin = self._names.get(called, "")
        module, _, name = self._canonical(origin).rpartition(".") if origin else ("", "", "")
        file = self._file(module)
        found = [node for node in file.tree.body if _is_named(node, name)] if file is not None else []
        if file is None or len(found) != 1 or not isinstance(found[0], cst.ClassDef):
            return None
        return ForeignClass(found[0], file.scopes, partial(self._in_own_words, file))

    def number(self, called: str) -> float | int | None:
        """That a neighbour's file binds to that name, once."""
        origin = self._names.get(called, "")
        module, _, name = self._canonical(origin).rpartition(".") if origin else ("", "", "")
        file = self._file(module)
        found = [node for node in file.tree.body if _is_named(node, name)] if file is not None else []
        small = found[0].body[0] if len(found) == 1 and isinstance(found[0], cst.SimpleStatementLine) else None
        value = small.value if isinstance(small, cst.Assign) and len(small.targets) == 1 else None
        return value.evaluated_value if isinstance(value, (cst.Integer, cst.Float)) else None

    def _in_own_words(self, file: _File, function: cst.FunctionDef, free: frozenset[str]) -> cst.FunctionDef | None:
        renamed: dict[str, cst.BaseExpression] = {}
        for name in sorted(free):
            said = self._said(file, name)
            if said is None:
                return None
            renamed[name] = cst.Name(said)
        own = {name.value for name in renamed.values() if isinstance(name, cst.Name)}
        bound = {n.value for n in descendants(function) if isinstance(n, cst.Name)} - set(renamed)
        if own & bound:
            return None  # what it needs is called here what it calls something of its own
        made = substituted(function.with_changes(decorators=(), returns=None), renamed)
        assert isinstance(made, cst.FunctionDef)
        return made.with_changes(decorators=function.decorators)

    def _said(self, file: _File, name: str) -> str | None:
        """How the kernel's file says what a name at the top of another one is; None where it cannot."""
        if file.scopes.binds(name):
            origin = f"{file.module}.{name}"
        else:
            origin = file.scopes.of_file(name)
            if origin == f"builtins.{name}":
                return name if self._own.scopes.of_file(name) == origin else None
            origin = self._canonical(file.absolute(origin)) if origin else ""
        if not origin:
            return None
        for known, where in self._names.items():
            if where == origin:
                return known
        line = self._import_of(origin, fresh := self._fresh(name))
        if line is None:
            return None
        self.imports[fresh], self._names[fresh] = line, origin
        self._taken.add(fresh)
        return fresh

    def _fresh(self, name: str) -> str:
        number, fresh = 2, name
        while fresh in self._taken:
            fresh, number = f"{name}_{number}", number + 1
        return fresh

    def _import_of(self, origin: str, name: str) -> str | None:
        module, _, last = origin.rpartition(".")
        alias = "" if last == name else f" as {name}"
        if not module:
            return f"import {last}{alias}"
        if self._file(module) is None and self._file(origin) is None:
            return f"from {module} import {last}{alias}"
        path = self._relative(module)
        return None if path is None else f"from {path} import {last}{alias}"

    def _relative(self, module: str) -> str | None:
        """How the kernel's file may import a neighbour: in the way it does so already."""
        own, other = self.around.module.split("."), module.split(".")
        origins = self._own.scopes.imported().values()
        if any(origin.startswith(".") for origin in origins):
            common = 0
            while common < min(len(own) - 1, len(other)) and own[common] == other[common]:
                common += 1
            return "." * (len(own) - common) + ".".join(other[common:]) if common else None
        full = any(origin.partition(".")[0] == other[0] for origin in origins)
        return module if full else None

    # --- where things are defined ------------------------------------------------------------------

    def _canonical(self, origin: str) -> str:
        """Where it is defined, of a neighbour's; as it is, of anything else."""
        origin = self._own.absolute(origin)
        for where in self._steps(origin):
            origin = where
        return origin

    def _defined(self, origin: str) -> tuple[_File, cst.FunctionDef] | None:
        module, _, name = self._canonical(origin).rpartition(".")
        file = self._file(module)
        if file is None:
            return None
        found = [n for n in file.tree.body if isinstance(n, cst.FunctionDef) and n.name.value == name]
        again = [n for n in descendants(cst.Module([*file.tree.body])) if _binds_as_well(n, name)]
        return (file, found[0]) if len(found) == 1 and not again else None

    def _steps(self, origin: str) -> Iterator[str]:
        """From file to file, for as long as each only imports it."""
        for _ in range(_MOST_STEPS):
            module, _, name = origin.rpartition(".")
            file = self._file(module)
            if file is None or not name or file.scopes.binds(name):
                return
            further = file.scopes.of_file(name)
            if not further or further.startswith("builtins."):
                return
            origin = file.absolute(further)
            yield origin

    def _file(self, module: str) -> _File | None:
        """Of a neighbour by its full name; an absolute import may also be of one in the kernel's own folder."""
        beside = self.around.module.rpartition(".")[0]
        for full in (module, f"{beside}.{module}") if beside else (module,):
            path = full.replace(".", "/")
            for name, is_package in ((f"{path}.py", False), (f"{path}/__init__.py", True)):
                if module and name in self._texts:
                    return _read(full, is_package, self._texts[name])
        return None


@lru_cache(maxsize=64)
def _read(module: str, is_package: bool, text: str) -> _File | None:
    try:
        tree = cst.parse_module(text)
    except (cst.ParserSyntaxError, RecursionError, ValueError):
        return None
    return _File(module, is_package, tree, Scopes(tree))


def _is_named(node: cst.CSTNode, name: str) -> bool:
    """It defines, or may define, that name at the top of its file."""
    if isinstance(node, (cst.ClassDef, cst.FunctionDef)):
        return node.name.value == name
    return any(_binds_as_well(each, name) for each in descendants(node))


def _binds_as_well(node: cst.CSTNode, name: str) -> bool:
    """At whatever place: the function of that name may then be another one."""
    return isinstance(node, cst.AssignTarget) and isinstance(node.target, cst.Name) and node.target.value == name
