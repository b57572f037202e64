"""Which names of a kernel hold what only the device knows: registers, scalars, and the tensors and grids around them.

Read off the text, name by name: a name counts as what all of its assignments agree on, and as nothing where one of them
is not understood.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Union

from nki_sim.lint.kernel_source import KernelSource

ScopeNode = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda]

WIDE = ("nki.language.int64", "nki.language.uint64")
DEVICE_LOOPS = {"nki.language.fori_loop": 2, "nki.language.while_loop": 1}
"""By name: the place of the body among its arguments."""
_ALLOCATIONS = {"ndarray": (1, 2), "zeros": (1, 2), "ones": (1, 2), "full": (2, 3)}
"""Functions of nki.language that make a tensor: the places of dtype and buffer among their arguments."""
_GRIDS = ("tiles", "blocks", "alloc_tiles", "alloc_blocks")
_VIEWS = ("ap", "select", "slice", "reshape", "permute", "broadcast", "expand_dim", "squeeze_dim", "reshape_dim",
          "flatten_dims", "rearrange")  # fmt: skip


@dataclass(frozen=True)
class Held:
    """What a name or an expression holds."""

    kind: str
    """`register`, `scalar`, `counter` (one of the two: the bounds of its loop decide), `tensor` or `grid`."""
    dtype: str = ""
    """Dotted name; empty where the text does not say."""
    buffer: str = ""

    @property
    def on_device(self) -> bool:
        """A number that has no value while the kernel is traced."""
        return self.kind in ("register", "scalar", "counter")

    @property
    def wide(self) -> bool:
        return self.dtype in WIDE


Binding = Union[ast.expr, Held, None]
"""What is assigned; None where that is not understood."""


@dataclass
class _Scope:
    node: ScopeNode
    outer: _Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    """Names that it declares nonlocal or global."""


@dataclass(frozen=True)
class Body:
    """A function that is the body of a device loop."""

    call: ast.Call
    loop: str
    """Dotted name of the loop."""
    function: ScopeNode


class DeviceValues:
    """Of the kernel code of one file."""

    def __init__(self, source: KernelSource) -> None:
        self._source = source
        self._scope_of: dict[int, _Scope] = {}
        self._inside: dict[int, _Scope] = {}
        self._in_progress: set[tuple[int, str]] = set()
        for function in source.kernel_code:
            self._enter(function, None)
        self.bodies = tuple(self._bodies())
        for body in self.bodies:
            self._bind_counter(body)

    def of(self, node: ast.expr) -> Held | None:
        """What an expression of kernel code holds, if it is one of these."""
        return self._held(node, self._scope_of.get(id(node)))

    def outer_names(self, function: ScopeNode) -> set[str]:
        """Names that it declares nonlocal or global and assigns."""
        scope = self._inside.get(id(function))
        return set(scope.elsewhere) if scope is not None else set()

    # --- scopes -----------------------------------------------------------------------------------

    def _enter(self, function: ScopeNode, outer: _Scope | None) -> None:
        scope = self._inside[id(function)] = _Scope(function, outer)
        arguments = function.args
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            scope.bindings.setdefault(argument.arg, []).append(None)
        for body in function.body if isinstance(function.body, list) else [function.body]:
            self._walk(body, scope)

    def _walk(self, node: ast.AST, scope: _Scope) -> None:
        self._scope_of[id(node)] = scope
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            if not isinstance(node, ast.Lambda):
                scope.bindings.setdefault(node.name, []).append(None)
            self._enter(node, scope)
            return
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            scope.elsewhere.update(node.names)
        for name, binding in _bound(node, self._source):
            scope.bindings.setdefault(name, []).append(binding)
        for child in ast.iter_child_nodes(node):
            self._walk(child, scope)

    def _bodies(self) -> Iterator[Body]:
        for call, name in self._source.calls():
            at = DEVICE_LOOPS.get(name)
            if at is None:
                continue
            given = [k.value for k in call.keywords if k.arg == "body_fun"] or call.args[at : at + 1]
            function = self._function(given[0], self._scope_of.get(id(call))) if given else None
            if function is not None:
                yield Body(call, name, function)

    def _function(self, node: ast.expr, scope: _Scope | None) -> ScopeNode | None:
        if isinstance(node, ast.Lambda):
            return node
        if not isinstance(node, ast.Name):
            return None
        while scope is not None:
            for inner in ast.walk(scope.node):
                if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)) and inner.name == node.id:
                    return inner
            scope = scope.outer
        return self._source.functions.get(node.id)

    def _bind_counter(self, body: Body) -> None:
        scope, names = self._inside.get(id(body.function)), body.function.args.args
        if scope is not None and names:
            scope.bindings[names[0].arg] = [self.counter(body)]

    def counter(self, body: Body) -> Held:
        """What the body of a device loop receives (NKI 0.7): a scalar, or a register where a bound is one."""
        if body.loop.endswith(".while_loop"):
            return Held("register")
        bounds = [*body.call.args[:2], *(k.value for k in body.call.keywords if k.arg in ("lower", "upper"))]
        held = [self.of(bound) for bound in bounds]
        if any(each is not None and each.kind == "register" for each in held):
            return Held("register")
        sure = all(
            (each is not None and each.kind == "scalar") or isinstance(bound, ast.Constant)
            for each, bound in zip(held, bounds)
        )
        return Held("scalar", "nki.language.int32") if sure and bounds else Held("counter")

    # --- expressions ------------------------------------------------------------------------------

    def _held(self, node: ast.expr, scope: _Scope | None) -> Held | None:
        if isinstance(node, ast.Name):
            return self._of_name(node.id, scope)
        if isinstance(node, ast.Call):
            return self._of_call(node, scope)
        if isinstance(node, ast.BinOp):
            sides = [self._held(side, scope) for side in (node.left, node.right)]
            return next((side for side in sides if side is not None and side.on_device), None)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            found = self._held(node.operand, scope)
            return found if found is not None and found.on_device else None
        if isinstance(node, ast.Subscript):
            found = self._held(node.value, scope)
            return found if found is not None and not found.on_device else None
        return None

    def _of_call(self, node: ast.Call, scope: _Scope | None) -> Held | None:
        module, _, name = self._source.dotted(node.func).rpartition(".")
        if module == "nki.isa" and name == "register_alloc":
            return Held("register")
        if module == "nki.isa" and name == "scalar_load":
            given = [*node.args, *(k.value for k in node.keywords if k.arg == "src")]
            loaded = self._held(given[0], scope) if given else None
            return Held("scalar", loaded.dtype if loaded is not None else "")
        if module == "nki.language" and name in _GRIDS:
            return Held("grid")
        if module == "nki.language" and name in _ALLOCATIONS:
            return Held("tensor", *(self._argument(node, _ALLOCATIONS[name])))
        if isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS:
            return self._held(node.func.value, scope)
        return None

    def _argument(self, node: ast.Call, places: tuple[int, int]) -> tuple[str, str]:
        """Dotted names of dtype and buffer; a tensor without a buffer is in SBUF."""
        found = []
        for name, at in zip(("dtype", "buffer"), places):
            given = [k.value for k in node.keywords if k.arg == name] or node.args[at : at + 1]
            found.append(self._source.dotted(given[0]) or "?" if given else "nki.language.sbuf")
        return found[0], found[1]

    def _of_name(self, name: str, scope: _Scope | None) -> Held | None:
        while scope is not None and (name not in scope.bindings or name in scope.elsewhere):
            scope = scope.outer
        if scope is None or (id(scope), name) in self._in_progress:
            return None
        self._in_progress.add((id(scope), name))
        try:
            found = [
                each if isinstance(each, Held) or each is None else self._held(each, scope)
                for each in scope.bindings[name]
                if not _mentions(each, name)
            ]
        finally:
            self._in_progress.discard((id(scope), name))
        return found[0] if found and all(each == found[0] for each in found) else None


def _bound(node: ast.AST, source: KernelSource) -> Iterator[tuple[str, Binding]]:
    """Names that one statement or expression binds, with what."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _to_target(target, node.value)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield from _to_target(node.target, node.value)
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        dynamic = isinstance(node.iter, ast.Call) and source.dotted(node.iter.func) == "nki.language.dynamic_range"
        yield from _to_target(node.target, Held("register") if dynamic else None)
    elif isinstance(node, ast.comprehension):
        yield from _to_target(node.target, None)
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        for item in node.items:
            if item.optional_vars is not None:
                yield from _to_target(item.optional_vars, None)


def _to_target(target: ast.expr, value: Binding) -> Iterator[tuple[str, Binding]]:
    if isinstance(target, ast.Name):
        yield target.id, value
        return
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, None


def _mentions(binding: Binding, name: str) -> bool:
    """`s = s + 1` keeps what s is."""
    return isinstance(binding, ast.BinOp) and any(
        isinstance(node, ast.Name) and node.id == name for node in ast.walk(binding)
    )


@lru_cache(maxsize=2)
def values_of(source: KernelSource) -> DeviceValues:
    """Of the file that is being checked: nearly every rule of NKI 0.7 asks for it."""
    return DeviceValues(source)
