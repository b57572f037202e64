"""What a kernel's text tells of its arguments: their names, which are arrays, and what it calls their sizes."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import Union

from accelopt_core.candidate import parsed
from nki_sim.lint.kernel_source import top_level

SHAPE = re.compile(r"([1-9]\d{0,9}(?:x[1-9]\d{0,9}){0,7})(?::(\w{1,30}))?")
"""Of an array, as somebody writes it: `128x512:float32`."""

_PLAIN = {"int", "float", "bool", "str", "tuple", "dtype", "None"}
"""Annotations of parameters that are no arrays."""


@dataclass(frozen=True)
class Parameter:
    name: str
    is_array: bool
    default: str | None = None
    """As it is written; None where there is none."""
    sizes: tuple[str, ...] | None = None
    """Of an array, by name; the same name, the same size. None where the text does not tell how many there are."""
    may_be_number: bool = False
    """Nothing is asked of it that only an array has."""


@dataclass(frozen=True)
class Signature:
    name: str
    parameters: tuple[Parameter, ...]

    @property
    def arrays(self) -> tuple[Parameter, ...]:
        return tuple(each for each in self.parameters if each.is_array)

    @property
    def given(self) -> tuple[Parameter, ...]:
        """What whoever calls the kernel gives it: arrays, and what has no default."""
        return tuple(each for each in self.parameters if each.is_array or each.default is None)

    @property
    def unknown(self) -> tuple[Parameter, ...]:
        """What the kernel must be given and is no array."""
        return tuple(each for each in self.parameters if not each.is_array and each.default is None)


def signature_of(source: str, names: tuple[str, ...]) -> Signature | None:
    """Of the first function of these names at the top of a kernel's file; None where no `def` of one is there.

    Raises what `ast.parse` does.
    """
    functions = {node.name: node for node in top_level(parsed(source).body) if isinstance(node, ast.FunctionDef)}
    node = next((functions[name] for name in names if name in functions), None)
    return None if node is None else Signature(node.name, _with_sizes(node, tuple(_parameters(node))))


def _parameters(node: ast.FunctionDef) -> list[Parameter]:
    plain = [*node.args.posonlyargs, *node.args.args]
    defaults: list[ast.expr | None] = [*[None] * (len(plain) - len(node.args.defaults)), *node.args.defaults]
    made = []
    for argument, default in zip([*plain, *node.args.kwonlyargs], [*defaults, *node.args.kw_defaults]):
        written = ast.unparse(argument.annotation) if argument.annotation is not None else ""
        is_plain = written.replace(" ", "").partition("[")[0].partition("|")[0] in _PLAIN or "dtype" in written
        made.append(
            Parameter(
                argument.arg, default is None and not is_plain, ast.unparse(default) if default is not None else None
            )
        )
    return made


# --- sizes ------------------------------------------------------------------------------------------

_Sizes = dict[str, dict[int, str]]
"""Array -> axis -> what that size is called."""


def _with_sizes(node: ast.FunctionDef, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    arrays = {each.name for each in parameters if each.is_array}
    named: _Sizes = {name: {} for name in arrays}
    ranks: dict[str, int] = {}
    same: dict[str, str] = {}
    used_as_array: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Attribute, ast.Subscript)) and isinstance(inner.value, ast.Name):
            used_as_array.add(inner.value.id)
        if isinstance(inner, ast.Assign) and len(inner.targets) == 1:
            _read_assignment(inner.targets[0], inner.value, named, ranks)
        elif isinstance(inner, ast.Compare) and len(inner.ops) == 1 and isinstance(inner.ops[0], ast.Eq):
            left, right = inner.left, inner.comparators[0]
            if isinstance(left, ast.Name) and isinstance(right, ast.Name):
                same[_first(same, left.id)] = _first(same, right.id)
        elif isinstance(inner, ast.Subscript) and isinstance(inner.value, ast.Name) and inner.value.id in arrays:
            ranks.setdefault(inner.value.id, _indices(inner.slice))
    made = []
    for each in parameters:
        rank = max([ranks.get(each.name, 0), *(axis + 1 for axis in named.get(each.name, {}))])
        if each.is_array and rank:
            of_axes = named[each.name]
            sizes = tuple(
                _constant(_first(same, of_axes[axis]) if axis in of_axes else f"{each.name}_{axis}")
                for axis in range(rank)
            )
            each = replace(each, sizes=sizes)
        made.append(replace(each, may_be_number=each.is_array and each.name not in used_as_array))
    return tuple(made)


def _read_assignment(target: ast.expr, value: ast.expr, named: _Sizes, ranks: dict[str, int]) -> None:
    """`M, K = x.shape` and `M = x.shape[0]`; also several of either on one line."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts):
            _read_assignment(one, other, named, ranks)
        return
    array = _array_of_shape(value)
    if array in named and isinstance(target, (ast.Tuple, ast.List)):
        if not any(isinstance(each, ast.Starred) for each in target.elts):
            ranks[array] = len(target.elts)
            for axis, each in enumerate(target.elts):
                if isinstance(each, ast.Name) and each.id.strip("_"):
                    named[array].setdefault(axis, each.id)
    elif isinstance(value, ast.Subscript) and isinstance(target, ast.Name):
        array = _array_of_shape(value.value)
        if array in named and isinstance(value.slice, ast.Constant) and type(value.slice.value) is int:
            if value.slice.value >= 0:
                named[array].setdefault(value.slice.value, target.id)


def _array_of_shape(node: ast.expr) -> str:
    """`x` of `x.shape`; empty for anything else."""
    is_shape = isinstance(node, ast.Attribute) and node.attr == "shape" and isinstance(node.value, ast.Name)
    return node.value.id if is_shape else ""  # type: ignore[attr-defined]


def _indices(index: Union[ast.expr, ast.slice]) -> int:
    """How many axes a subscript names; 0 where that does not tell how many there are."""
    each = index.elts if isinstance(index, ast.Tuple) else [index]
    if any(isinstance(one, ast.Constant) and one.value in (None, ...) for one in each) or len(each) < 2:
        return 0
    return len(each)


def _first(same: dict[str, str], name: str) -> str:
    seen = {name}
    while name in same and same[name] not in seen:
        name = same[name]
        seen.add(name)
    return name


def _constant(name: str) -> str:
    return name.upper()
