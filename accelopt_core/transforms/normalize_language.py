"""Functions of nki.language on tiles as the instructions that they are.

    total = nl.sum(tile, axis=[1])                 total = nl.ndarray((P, 1), dtype=tile.dtype, buffer=nl.sbuf)
                                                   nisa.tensor_reduce(dst=total, op=nl.add, data=tile, axis=(1,))
    y = nl.exp(nl.subtract(x, most))         ->    x_less, y: two tiles, a tensor_scalar and an activation

Where the shape of what comes out shows in the text, and which instruction it is does too; the others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst

from accelopt_core.transforms.declared import declared_dtype
from accelopt_core.transforms.index_algebra import expression_of, number
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.loop_sites import as_factor
from accelopt_core.transforms.normalize_names import fresh_name
from accelopt_core.transforms.operand_access import ON_CHIP
from accelopt_core.transforms.syntax import (
    content_names,
    descendants,
    loaded_names,
    parsed_expression,
    parsed_statement,
)
from accelopt_core.transforms.tile_shapes import Shape, Shapes

ONE = number(1)
BINARY = frozenset({"add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal", "less", "less_equal",
                    "greater", "greater_equal"})  # fmt: skip
ACTIVATED = frozenset({"exp", "log", "sqrt", "tanh", "sigmoid", "relu", "gelu", "gelu_apprx_tanh", "silu", "softplus",
                       "erf", "sign", "square"})  # fmt: skip
REDUCED = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "multiply"}


class _Stays(Exception):
    """The text does not show which instructions a call is."""


@dataclass(frozen=True)
class _Tile:
    text: str
    shape: Shape
    dtype: str
    """As text: `x.dtype`."""
    declared: str
    """`nki.language.float32`; empty where it does not show."""


@dataclass(frozen=True)
class _Call:
    """Of one function, its arguments by name."""

    name: str
    given: dict[str, cst.BaseExpression]
    result: str
    """What the new tile is called."""


def with_language_as_instructions(code: KernelCode) -> cst.Module:
    """The module; the very one of `code` when nothing changes."""
    isa, language = code.name_of_module("nki.isa"), code.name_of_module("nki.language")
    if not isa or not language:
        return code.module
    used = set(code.all_names)
    made: dict[cst.CSTNode, list[cst.BaseStatement]] = {}
    for statement in code.statements():
        if statement.kind is Kind.OPAQUE:
            lines = _Lowered(code, statement, isa, language, used).lines()
            if lines:
                made[statement.node] = _in_place_of(statement.node, lines)
    if not made:
        return code.module
    result = code.module.visit(_Replace(made))
    assert isinstance(result, cst.Module)
    return result


def _in_place_of(node: cst.BaseStatement, lines: Sequence[str]) -> list[cst.BaseStatement]:
    assert isinstance(node, cst.SimpleStatementLine)
    made: list[cst.BaseStatement] = [parsed_statement(line) for line in lines]
    made[0] = made[0].with_changes(leading_lines=node.leading_lines)
    made[-1] = made[-1].with_changes(trailing_whitespace=node.trailing_whitespace)
    return made


class _Replace(cst.CSTTransformer):
    def __init__(self, made: dict[cst.CSTNode, list[cst.BaseStatement]]) -> None:
        self._made = made

    def leave_SimpleStatementLine(  # libcst's name
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        made = self._made.get(original_node)
        return cst.FlattenSentinel(made) if made is not None else updated_node


class _Lowered:
    """One statement."""

    def __init__(self, code: KernelCode, at: Statement, isa: str, language: str, used: set[str]) -> None:
        self._code, self._at, self._isa, self._nl, self._used = code, at, isa, language, used
        self._shapes = Shapes(code)
        self._lines: list[str] = []
        self._fresh: set[str] = set()

    def lines(self) -> list[str]:
        """Empty where the statement stays as it is."""
        node = self._at.node
        small = node.body[0] if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1 else None
        if small is None or any(isinstance(each, cst.Comment) for each in descendants(small)):
            return []
        try:
            if isinstance(small, cst.Assign) and len(small.targets) == 1:
                target = small.targets[0].target
                if isinstance(target, cst.Name) and isinstance(small.value, cst.Call):
                    self._assigned(target.value, small.value)
            elif isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
                self._argument_of(small.value)
        except _Stays:
            return []
        self._used |= self._fresh
        return self._lines

    def _assigned(self, name: str, call: cst.Call) -> None:
        if name in loaded_names(call) or name in self._code.captured or len(self._code.bindings(name)) != 1:
            raise _Stays
        self._lower(call, name)

    def _argument_of(self, call: cst.Call) -> None:
        """Calls within an instruction come before it, in their order."""
        if not self._code.qualified(call.func).startswith("nki.isa."):
            raise _Stays
        args = []
        for arg in call.args:
            if isinstance(arg.value, cst.Call) and self._name_of(arg.value):
                tile = self._lower(arg.value, self._temporary(self._name_of(arg.value)))
                arg = arg.with_changes(value=parsed_expression(tile.text))
            args.append(arg)
        if not self._lines:
            raise _Stays
        self._lines.append(self._text(call.with_changes(args=args)))

    # --- calls ------------------------------------------------------------------------------------

    def _lower(self, call: cst.Call, result: str) -> _Tile:
        name = self._name_of(call)
        lowering = _LOWERINGS.get(name)
        if lowering is None:
            raise _Stays
        function, parameters = lowering
        given = {}
        for at, arg in enumerate(call.args):
            if arg.star or (arg.keyword is None and at >= len(parameters)):
                raise _Stays
            given[arg.keyword.value if arg.keyword is not None else parameters[at]] = arg.value
        if not set(given) <= set(parameters):
            raise _Stays
        return function(self, _Call(name, given, result))

    def _name_of(self, call: cst.Call) -> str:
        qualified = self._code.qualified(call.func)
        name = qualified.removeprefix("nki.language.")
        return name if name != qualified and name in _LOWERINGS else ""

    def binary(self, call: _Call) -> _Tile:
        x, y = self._operand(call, "x"), self._operand(call, "y")
        if isinstance(x, _Tile) and isinstance(y, _Tile):
            if x.shape == y.shape:
                made = self._made(call, x.shape, x)
                self._issue(f"tensor_tensor(dst={made.text}, data1={x.text}, data2={y.text}, op={self._op(call.name)})")
                return made
            if _is_column(y, x):
                return self._with_number(call, x, self._column(y), reverse=False)
            if _is_column(x, y):
                return self._with_number(call, y, self._column(x), reverse=True)
            raise _Stays
        if isinstance(x, _Tile):
            assert isinstance(y, str)
            return self._with_number(call, x, y, reverse=False)
        if isinstance(y, _Tile):
            return self._with_number(call, y, x, reverse=True)
        raise _Stays

    def _column(self, column: _Tile) -> str:
        if column.declared != "nki.language.float32":  # another one is copied first
            raise _Stays
        return column.text

    def _with_number(self, call: _Call, tile: _Tile, operand: str, reverse: bool) -> _Tile:
        made = self._made(call, tile.shape, tile)
        last = ", reverse0=True" if reverse else ""
        self._issue(
            f"tensor_scalar(dst={made.text}, data={tile.text}, op0={self._op(call.name)}, operand0={operand}{last})"
        )
        return made

    def activated(self, call: _Call) -> _Tile:
        x = self._tile(call, "x")
        made = self._made(call, x.shape, x)
        self._issue(f"activation(dst={made.text}, op={self._op(call.name)}, data={x.text})")
        return made

    def copied(self, call: _Call) -> _Tile:
        x = self._tile(call, "x")
        made = self._made(call, x.shape, x)
        self._issue(f"tensor_copy(dst={made.text}, src={x.text})")
        return made

    def inverted(self, call: _Call) -> _Tile:
        x = self._tile(call, "x")
        made = self._made(call, x.shape, x)
        self._issue(f"reciprocal(dst={made.text}, data={x.text})")
        return made

    def negated(self, call: _Call) -> _Tile:
        x = self._tile(call, "x")
        made = self._made(call, x.shape, x)
        self._issue(f"tensor_scalar(dst={made.text}, data={x.text}, op0={self._op('multiply')}, operand0=-1.0)")
        return made

    def reduced(self, call: _Call) -> _Tile:
        x = self._tile(call, "x")
        axes, shape = self._reduction(call, x)
        made = self._made(call, shape, x)
        self._reduce(made, REDUCED[call.name], x, axes)
        return made

    def mean(self, call: _Call) -> _Tile:
        x = self._tile(call, "x")
        axes, shape = self._reduction(call, x)
        total = self._allocated(self._temporary(f"{call.result}_sum"), shape, f"{self._nl}.float32", _FLOAT32)
        self._reduce(total, "add", x, axes)
        made = self._made(call, shape, x)
        counts = [as_factor(str(x.shape[axis])) for axis in axes]
        over = f"({' * '.join(counts)})" if len(counts) > 1 else counts[0]
        self._issue(
            f"tensor_scalar(dst={made.text}, data={total.text}, op0={self._op('multiply')}, operand0=1.0 / {over})"
        )
        return made

    def turned(self, call: _Call) -> _Tile:
        x = self._tile(call, "x")
        if len(x.shape) != 2 or "dtype" in call.given:
            raise _Stays
        made = self._allocated(call.result, (x.shape[1], x.shape[0]), x.dtype, x.declared, "psum")
        self._issue(f"nc_transpose(dst={made.text}, data={x.text})")
        return made

    def multiplied(self, call: _Call) -> _Tile:
        x, y, turned = self._tile(call, "x"), self._tile(call, "y"), call.given.get("transpose_x")
        if len(x.shape) != 2 or len(y.shape) != 2 or not isinstance(turned, cst.Name) or turned.value != "True":
            raise _Stays
        made = self._allocated(call.result, (x.shape[1], y.shape[1]), f"{self._nl}.float32", _FLOAT32, "psum")
        self._issue(f"nc_matmul(dst={made.text}, stationary={x.text}, moving={y.text})")
        return made

    # --- what they share --------------------------------------------------------------------------

    def _reduction(self, call: _Call, x: _Tile) -> tuple[tuple[int, ...], Shape]:
        axis = call.given.get("axis")
        if axis is None:
            raise _Stays
        each = [element.value for element in axis.elements] if isinstance(axis, (cst.Tuple, cst.List)) else [axis]
        axes = []
        for one in each:
            text = self._text(one)
            if not text.lstrip("-").isdecimal():
                raise _Stays
            axes.append(int(text) + len(x.shape) if int(text) < 0 else int(text))
        axes = sorted(axes)
        if not axes or axes != list(range(len(x.shape) - len(axes), len(x.shape))) or 0 in axes:
            raise _Stays
        keep = call.given.get("keepdims")
        if keep is not None and self._text(keep) not in ("True", "False"):
            raise _Stays
        kept = x.shape[: axes[0]]
        shape = (*kept, *(ONE for _ in axes)) if keep is not None and self._text(keep) == "True" else kept
        return tuple(axes), shape if len(shape) > 1 else (*shape, ONE)

    def _reduce(self, made: _Tile, op: str, x: _Tile, axes: tuple[int, ...]) -> None:
        over = str(axes[0]) if len(axes) == 1 else f"({', '.join(map(str, axes))})"
        self._issue(f"tensor_reduce(dst={made.text}, op={self._op(op)}, data={x.text}, axis={over})")

    def _operand(self, call: _Call, parameter: str) -> _Tile | str:
        expression = call.given.get(parameter)
        if expression is None:
            raise _Stays
        if isinstance(expression, cst.Call) and self._name_of(expression):
            return self._lower(expression, self._temporary(f"{call.result}_{parameter}"))
        base = self._shapes.base(expression, self._at)
        if base is None or base.value in self._code.parameters:
            return self._number(expression)
        shape, regions = self._shapes.of(expression, self._at), self._code.regions_of(base)
        if shape is None or not regions or not regions <= ON_CHIP:
            raise _Stays
        declared = {declared_dtype(self._code, each) for each in self._code.allocations_of(base)}
        return _Tile(self._text(expression), shape, f"{base.value}.dtype", declared.pop() if len(declared) == 1 else "")

    def _number(self, expression: cst.BaseExpression) -> str:
        """An argument among them: these functions take no tensor of HBM, so it is a number too."""
        roots = self._code.roots_of(content_names(expression))
        bindings = [binding for name in loaded_names(expression) for binding in self._code.bindings(name)]
        if not roots <= self._code.parameters or any(binding.kind is Kind.OPAQUE for binding in bindings):
            raise _Stays
        if loaded_names(expression) & self._shapes.of_loops:
            raise _Stays  # `for tile in tiles`
        if any(isinstance(each, cst.Call) for each in descendants(expression)):
            raise _Stays
        return self._text(expression)

    def _tile(self, call: _Call, parameter: str) -> _Tile:
        operand = self._operand(call, parameter)
        if isinstance(operand, str):
            raise _Stays
        return operand

    def _made(self, call: _Call, shape: Shape, like: _Tile) -> _Tile:
        dtype = call.given.get("dtype")
        if dtype is None or self._text(dtype) == "None":
            return self._allocated(call.result, shape, like.dtype, like.declared)
        return self._allocated(call.result, shape, self._text(dtype), self._code.qualified(dtype))

    def _allocated(self, name: str, shape: Shape, dtype: str, declared: str, buffer: str = "sbuf") -> _Tile:
        sizes = ", ".join(map(str, shape))
        self._lines.append(f"{name} = {self._nl}.ndarray(({sizes}), dtype={dtype}, buffer={self._nl}.{buffer})")
        return _Tile(name, shape, f"{name}.dtype", declared)

    def _temporary(self, wanted: str) -> str:
        used = self._used | self._fresh
        name = wanted if wanted not in used else fresh_name(wanted, used)
        self._fresh.add(name)
        return name

    def _issue(self, call: str) -> None:
        self._lines.append(f"{self._isa}.{call}")

    def _op(self, name: str) -> str:
        return f"{self._nl}.{name}"

    def _text(self, node: cst.CSTNode) -> str:
        return self._code.module.code_for_node(node)


_FLOAT32 = "nki.language.float32"
_LOWERINGS: dict[str, tuple[Callable[[_Lowered, _Call], _Tile], tuple[str, ...]]] = {
    **{name: (_Lowered.binary, ("x", "y", "dtype")) for name in BINARY},
    **{name: (_Lowered.activated, ("x", "dtype")) for name in ACTIVATED},
    **{name: (_Lowered.reduced, ("x", "axis", "dtype", "keepdims")) for name in REDUCED},
    "mean": (_Lowered.mean, ("x", "axis", "dtype", "keepdims")),
    "copy": (_Lowered.copied, ("x", "dtype")),
    "reciprocal": (_Lowered.inverted, ("x", "dtype")),
    "negative": (_Lowered.negated, ("x", "dtype")),
    "transpose": (_Lowered.turned, ("x", "dtype")),
    "matmul": (_Lowered.multiplied, ("x", "y", "transpose_x")),
}


def _is_column(column: _Tile, tile: _Tile) -> bool:
    """One value for each partition, beside a tile that shows to have more."""
    return (
        column.shape[0] == tile.shape[0]
        and all(length == ONE for length in column.shape[1:])
        and any(_is_more_than_one(str(length)) for length in tile.shape[1:])
    )


def _is_more_than_one(length: str) -> bool:
    """A number, or a name: a size of 1 would only be spelled as such, and gives the same numbers either way."""
    expression = expression_of(length)
    return not isinstance(expression, cst.Integer) or expression.evaluated_value > 1
