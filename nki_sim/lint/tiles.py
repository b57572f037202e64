"""Which expressions of kernel code are tiles that functions of nki.language return, and how many columns those have.

Read off the text, name by name: a name counts as what all of its assignments agree on, and as nothing where one of them
is not understood.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass

from nki_sim.lint.kernel_source import FunctionNode, KernelSource

BINARY = frozenset(
    {
        "add", "subtract", "multiply", "maximum", "minimum", "power", "divide", "mod", "fmod", "equal", "not_equal",
        "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_or", "logical_xor", "bitwise_and",
        "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
    }
)  # fmt: skip
"""Functions of two tiles."""
_REDUCTIONS = frozenset({"max", "min", "sum", "prod", "mean", "var", "all"})
_ALLOCATIONS = frozenset({"ndarray", "zeros", "ones", "full"})
_OTHERS = frozenset({"matmul", "transpose", "where", "broadcast_to"})
_OF_ONE = frozenset(
    {
        "abs", "negative", "sign", "trunc", "floor", "ceil", "sin", "cos", "tan", "tanh", "arctan", "exp", "log",
        "sqrt", "rsqrt", "reciprocal", "square", "relu", "sigmoid", "silu", "gelu", "gelu_dx", "softplus", "erf",
        "softmax", "rms_norm", "copy", "load", "zeros_like", "empty_like", "invert", "logical_not",
    }
)  # fmt: skip
"""Functions whose result has the shape of their first argument."""


@dataclass(frozen=True)
class Tile:
    columns: int | None = None
    """None where the text does not say."""


class Tiles:
    """Of the kernel code of one file."""

    def __init__(self, source: KernelSource) -> None:
        self._source = source
        self._assigned: dict[FunctionNode, defaultdict[str, list[ast.expr | None]]] = {}
        self._function_of: dict[int, FunctionNode] = {}
        self._names: dict[tuple[int, str], Tile | None] = {}
        """What names hold, each once; nothing while that is being found out."""
        for function in source.kernel_code:
            self._enter(function)

    def of(self, node: ast.expr) -> Tile | None:
        """The tile that an expression is; None for what is none, or is not known to be one."""
        function = self._function_of.get(id(node))
        return self._of(node, function) if function is not None else None

    def number(self, node: ast.expr) -> bool:
        """Is it a number of Python's: a literal, or a name that is bound to literals only?"""
        if isinstance(node, ast.UnaryOp):
            return self.number(node.operand)
        if isinstance(node, ast.BinOp):
            return self.number(node.left) and self.number(node.right)
        function = self._function_of.get(id(node))
        if isinstance(node, ast.Name) and function is not None and self._assigned[function].get(node.id):
            values = self._assigned[function][node.id]
            return all(isinstance(value, ast.Constant) and _is_number(value.value) for value in values)
        return isinstance(node, ast.Constant) and _is_number(node.value)

    def _enter(self, function: FunctionNode) -> None:
        names = self._assigned.setdefault(function, defaultdict(list))
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
        for argument, default in zip(positional, [*defaults, *arguments.defaults]):
            names[argument.arg].append(default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
            names[argument.arg].append(default)
        for node in ast.walk(function):
            self._function_of.setdefault(id(node), function)
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    for name in (n for n in ast.walk(target) if isinstance(n, ast.Name) and not _loads(n)):
                        names[name.id].append(node.value if name is target else None)
            elif isinstance(node, (ast.For, ast.AugAssign, ast.AnnAssign, ast.comprehension)):
                for name in (n for n in ast.walk(node.target) if isinstance(n, ast.Name)):
                    names[name.id].append(node.value if isinstance(node, ast.AnnAssign) else None)

    def _of(self, node: ast.expr, function: FunctionNode) -> Tile | None:
        if isinstance(node, ast.Name):
            return self._of_name(node.id, function)
        if isinstance(node, ast.Subscript):
            return Tile(_columns(node)) if self._of(node.value, function) is not None else None
        if not isinstance(node, ast.Call):
            return None
        module, _, name = self._source.dotted(node.func).rpartition(".")
        if module != "nki.language" or not (node.args or node.keywords):
            return None
        first = node.args[0] if node.args else None
        if name in _ALLOCATIONS:
            return self._allocated(node, first)
        if name in _REDUCTIONS:
            return Tile(1)
        if name in BINARY:
            sides = [self._of(side, function) for side in node.args[:2]]
            columns = [side.columns for side in sides if side is not None and side.columns is not None]
            known = len(columns) == sum(side is not None for side in sides)
            return Tile(max(columns, default=None) if known else None)
        if name in _OF_ONE:
            of_first = self._of(first, function) if first is not None else None
            if of_first is None and isinstance(first, ast.Subscript):
                return Tile(_columns(first))
            return of_first or Tile()
        return Tile() if name in _OTHERS else None

    def _allocated(self, node: ast.Call, shape: ast.expr | None) -> Tile | None:
        """A tile on chip; a tensor in HBM is none."""
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        if self._source.dotted(named["buffer"]).endswith("hbm") if "buffer" in named else False:
            return None
        shape = named.get("shape", shape)
        last = shape.elts[-1] if isinstance(shape, (ast.Tuple, ast.List)) and len(shape.elts) > 1 else None
        return Tile(last.value if isinstance(last, ast.Constant) and isinstance(last.value, int) else None)

    def _of_name(self, name: str, function: FunctionNode) -> Tile | None:
        key = (id(function), name)
        if key not in self._names:
            self._names[key] = None
            assigned = self._assigned[function].get(name, [])
            found = [None if value is None else self._of(value, function) for value in assigned]
            if found and None not in found:
                self._names[key] = found[0] if len(set(found)) == 1 else Tile()
        return self._names[key]


def _columns(node: ast.Subscript) -> int | None:
    """Of a slice with two indices at least, the last of which is between numbers."""
    if not isinstance(node.slice, ast.Tuple) or len(node.slice.elts) < 2:
        return None
    last = node.slice.elts[-1]
    if not isinstance(last, ast.Slice) or last.step is not None:
        return None
    start = 0 if last.lower is None else last.lower.value if isinstance(last.lower, ast.Constant) else None
    end = last.upper.value if isinstance(last.upper, ast.Constant) else None
    return end - start if isinstance(start, int) and isinstance(end, int) and end > start >= 0 else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _loads(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)
