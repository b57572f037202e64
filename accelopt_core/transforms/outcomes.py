"""How conditions come out at the shapes of a task: the Python of a kernel followed, number by number.

Followed are sizes, indices and constants, never a tensor's contents; of long loops some iterations. So this is a guess:
whoever rests on it states it as an assertion.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from accelopt_core.toolchain import ArgumentSpec, ConstantArgument, DtypeArgument, TensorArgument
from accelopt_core.transforms.isa_effects import LOOP_RANGES
from accelopt_core.transforms.kernel_code import KernelCode
from accelopt_core.transforms.neighbours import Neighbours
from accelopt_core.transforms.syntax import bound_names, descendants
from nki_sim.machine import ISA

MOST_TURNS = 1_000
"""Of a loop that has a condition."""
MOST_STATEMENTS = 20_000
"""Followed at one shape; what comes after is not known."""


class _Tile:
    """What an allocation makes: it is not None, and no more is known of it."""


class _NotKnown:
    """A value that depends on more than shapes."""


@dataclass(frozen=True)
class _Dtype:
    name: str


@dataclass(frozen=True)
class _Member:
    """Of an enumeration of the kernel's file, or of one that it imports."""

    of: str
    name: str


_UNKNOWN = _NotKnown()
_Value = object
"""A number, a text, None, a tuple, a TensorArgument, a _Dtype, a _Member, a _Tile, or _UNKNOWN."""

_TILE_SIZES = {
    "pmax": ISA.partitions,
    "psum_fmax": ISA.psum_bank_bytes // 4,
    "psum_bank_fmax": ISA.psum_bank_bytes // 4,
    "gemm_stationary_fmax": ISA.stationary_fmax,
    "gemm_moving_fmax": ISA.moving_fmax,
    "bn_stats_fmax": ISA.bn_stats_fmax,
}
_FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "builtins.min": min,
    "builtins.max": max,
    "builtins.len": len,
    "builtins.abs": abs,
    "builtins.int": int,
    "builtins.sum": sum,
    "builtins.bool": bool,
    "builtins.divmod": divmod,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.sqrt": math.sqrt,
    "math.prod": math.prod,
    "nki.language.num_programs": lambda *axes, **named: 1,
    "nki.language.program_id": lambda *axes, **named: 0,
    "nki.language.program_ndim": lambda: 0,
}
_BINARY: Mapping[type[cst.BaseBinaryOp], Callable[..., object]] = {
    cst.Add: operator.add,
    cst.Subtract: operator.sub,
    cst.Multiply: operator.mul,
    cst.FloorDivide: operator.floordiv,
    cst.Divide: operator.truediv,
    cst.Modulo: operator.mod,
}
_COMPARED: Mapping[type[cst.BaseCompOp], Callable[..., object]] = {
    cst.Equal: operator.eq,
    cst.NotEqual: operator.ne,
    cst.LessThan: operator.lt,
    cst.LessThanEqual: operator.le,
    cst.GreaterThan: operator.gt,
    cst.GreaterThanEqual: operator.ge,
    cst.Is: operator.is_,
    cst.IsNot: operator.is_not,
    cst.In: lambda a, b: a in b,
    cst.NotIn: lambda a, b: a not in b,
}
_AUGMENTED: Mapping[type[cst.BaseAugOp], Callable[..., object]] = {
    cst.AddAssign: operator.add,
    cst.SubtractAssign: operator.sub,
    cst.MultiplyAssign: operator.mul,
    cst.FloorDivideAssign: operator.floordiv,
}
_LARGEST = 2**48
"""Of a number that is followed."""


@dataclass
class Outcomes:
    """By node, what was seen; None among them where it is not known."""

    conditions: dict[cst.CSTNode, set[bool | None]] = field(default_factory=dict)
    """Of `if` statements and conditional expressions."""
    least: dict[cst.CSTNode, set[int | None]] = field(default_factory=dict)
    """Of calls of Python's own `min`: which argument it was, the first of equals; all that are equal, one by one."""

    def always(self, node: cst.CSTNode) -> bool | None:
        """How a condition came out each time; None where that differs or is not known."""
        seen = self.conditions.get(node, set())
        return next(iter(seen)) if len(seen) == 1 else None


def outcomes(code: KernelCode, presets: Sequence[Sequence[ArgumentSpec]]) -> Outcomes:
    found = Outcomes()
    for arguments in presets:
        _Following(code, found).run(arguments)
    return found


class _TooLong(Exception):
    """More statements than are followed."""


class _Following:
    def __init__(self, code: KernelCode, found: Outcomes) -> None:
        self._code, self._found = code, found
        self._values: dict[str, _Value] = {}
        self._left = MOST_STATEMENTS
        self._globals = _numbers_of(code.module)
        self._neighbours = Neighbours(code.module, code.around)
        self._enumerations = dict.fromkeys(_enumerations_in(code), True)

    def run(self, arguments: Sequence[ArgumentSpec]) -> None:
        params = (*self._code.function.params.posonly_params, *self._code.function.params.params)
        for at, param in enumerate(params):
            if at < len(arguments):
                given = arguments[at]
                value: _Value = given
                if isinstance(given, ConstantArgument):
                    value = given.value
                elif isinstance(given, DtypeArgument):
                    value = _Dtype(given.element_type)
                self._values[param.name.value] = value
            elif param.default is not None:
                self._values[param.name.value] = self._value(param.default)
        try:
            self._block(self._code.function.body.body)
        except _TooLong:
            self._give_up(self._code.function)

    # --- statements ---------------------------------------------------------------------------------

    def _block(self, body: Sequence[cst.CSTNode]) -> bool:
        """False where it is left before its end."""
        return all(self._statement(each) for each in body)

    def _statement(self, node: cst.CSTNode) -> bool:
        self._left -= 1
        if self._left < 0:
            raise _TooLong
        if isinstance(node, cst.SimpleStatementLine):
            return all(self._small(each) for each in node.body)
        if isinstance(node, cst.If):
            return self._if(node)
        if isinstance(node, cst.For):
            self._for(node)
            return True
        if isinstance(node, cst.With):
            return self._block(node.body.body)
        if isinstance(node, cst.While) and node.orelse is None:
            return self._while(node)
        self._give_up(node)
        return True

    def _small(self, node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.Return, cst.Raise, cst.Break, cst.Continue)):
            return False
        if isinstance(node, cst.Assign):
            value = self._value(node.value)
            for target in node.targets:
                self._bind(target.target, value)
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            self._bind(node.target, self._value(node.value))
        elif isinstance(node, cst.AugAssign):
            made = _calculated(_AUGMENTED.get(type(node.operator)), self._value(node.target), self._value(node.value))
            self._bind(node.target, made)
        elif isinstance(node, cst.Expr):
            self._value(node.value)
        elif isinstance(node, cst.Assert):
            self._value(node.test)
        return True

    def _bind(self, target: cst.CSTNode, value: _Value) -> None:
        if isinstance(target, cst.Name):
            self._values[target.value] = value
        elif isinstance(target, (cst.Tuple, cst.List)):
            parts = value if isinstance(value, tuple) and len(value) == len(target.elements) else None
            for at, element in enumerate(target.elements):
                self._bind(element.value, parts[at] if parts is not None else _UNKNOWN)

    def _if(self, node: cst.If) -> bool:
        came = self._came_out(node, node.test)
        otherwise = node.orelse
        if came is None:
            before = dict(self._values)
            self._block(node.body.body)
            after, self._values = self._values, before
            if otherwise is not None:
                self._otherwise(otherwise)
            for name in set(after) | set(self._values):
                if after.get(name, _UNKNOWN) is not self._values.get(name, _UNKNOWN):
                    self._values[name] = _UNKNOWN
            return True
        if came:
            return self._block(node.body.body)
        return otherwise is None or self._otherwise(otherwise)

    def _otherwise(self, node: cst.If | cst.Else) -> bool:
        return self._if(node) if isinstance(node, cst.If) else self._block(node.body.body)

    def _came_out(self, node: cst.CSTNode, test: cst.BaseExpression) -> bool | None:
        value = self._value(test)
        came = None if value is _UNKNOWN or isinstance(value, (TensorArgument, _Tile)) else bool(value)
        self._found.conditions.setdefault(node, set()).add(came)
        return came

    def _for(self, node: cst.For) -> None:
        count = self._range(node.iter)
        if count is None:
            self._give_up(node)
            return
        some = {0, 1, len(count) // 2, len(count) - 2, len(count) - 1}
        for at in sorted(each for each in some if 0 <= each < len(count)):
            self._bind(node.target, count[at])
            self._block(node.body.body)

    def _while(self, node: cst.While) -> bool:
        """To its end: sizes are halved until they fit."""
        for _ in range(MOST_TURNS):
            value = self._value(node.test)
            if value is _UNKNOWN or isinstance(value, (TensorArgument, _Tile)):
                break
            if not value:
                return True
            if not self._block(node.body.body):
                break
        self._give_up(node)
        return True

    def _range(self, call: cst.BaseExpression) -> range | None:
        if not isinstance(call, cst.Call) or self._code.qualified(call.func) not in LOOP_RANGES:
            return None
        bounds = [self._value(arg.value) for arg in call.args]
        if not bounds or len(bounds) > 3 or not all(isinstance(each, int) for each in bounds):
            return None
        numbers = [each for each in bounds if isinstance(each, int)]
        return range(*numbers) if len(numbers) < 3 or numbers[2] else None

    def _give_up(self, node: cst.CSTNode) -> None:
        """Of what is in it nothing is known, nor of what it binds."""
        for inner in descendants(node):
            if isinstance(inner, (cst.If, cst.IfExp)):
                self._found.conditions.setdefault(inner, set()).add(None)
            elif isinstance(inner, cst.Call):
                self._found.least.setdefault(inner, set()).add(None)
            elif isinstance(inner, (cst.AssignTarget, cst.For, cst.AugAssign, cst.AnnAssign)):
                self._values.update(dict.fromkeys(bound_names(inner.target), _UNKNOWN))

    # --- expressions --------------------------------------------------------------------------------

    def _value(self, node: cst.CSTNode) -> _Value:
        if isinstance(node, (cst.Integer, cst.Float)):
            return node.evaluated_value
        if isinstance(node, cst.SimpleString):
            return node.evaluated_value
        if isinstance(node, cst.Name):
            return self._name(node.value)
        if isinstance(node, (cst.Tuple, cst.List)):
            if isinstance(node, cst.List) and not node.elements:
                return _UNKNOWN  # to be filled
            return tuple(self._value(element.value) for element in node.elements)
        if isinstance(node, cst.UnaryOperation):
            return self._unary(node)
        if isinstance(node, cst.BinaryOperation):
            return _calculated(_BINARY.get(type(node.operator)), self._value(node.left), self._value(node.right))
        if isinstance(node, cst.BooleanOperation):
            return self._boolean(node)
        if isinstance(node, cst.Comparison):
            return self._comparison(node)
        if isinstance(node, cst.IfExp):
            came = self._came_out(node, node.test)
            return _UNKNOWN if came is None else self._value(node.body if came else node.orelse)
        if isinstance(node, cst.Subscript):
            return self._element(node)
        if isinstance(node, cst.Attribute):
            return self._attribute(node)
        if isinstance(node, cst.Call):
            return self._call(node)
        return _UNKNOWN

    def _name(self, name: str) -> _Value:
        if name in ("True", "False", "None"):
            return {"True": True, "False": False, "None": None}[name]
        if name in self._values:
            return self._values[name]
        if name not in self._globals:
            number = self._neighbours.number(name)
            self._globals[name] = _UNKNOWN if number is None else number
        return self._globals[name]

    def _unary(self, node: cst.UnaryOperation) -> _Value:
        value = self._value(node.expression)
        if isinstance(node.operator, cst.Not):
            return _UNKNOWN if value is _UNKNOWN or isinstance(value, (TensorArgument, _Tile)) else not value
        return _computed(operator.neg, value) if isinstance(node.operator, cst.Minus) else _UNKNOWN

    def _boolean(self, node: cst.BooleanOperation) -> _Value:
        left, right = self._value(node.left), self._value(node.right)
        decides = isinstance(node.operator, cst.Or)
        if left is not _UNKNOWN and not isinstance(left, (TensorArgument, _Tile)):
            return left if bool(left) is decides else right
        return right if isinstance(right, bool) and right is decides else _UNKNOWN

    def _comparison(self, node: cst.Comparison) -> _Value:
        left = self._value(node.left)
        for target in node.comparisons:
            right = self._value(target.comparator)
            tiles = [side for side in (left, right) if isinstance(side, _Tile)]
            if tiles and None not in (left, right):
                return _UNKNOWN
            held = _computed(_COMPARED.get(type(target.operator)), left, right)
            if held is not True:
                return held
            left = right
        return True

    def _element(self, node: cst.Subscript) -> _Value:
        value = self._value(node.value)
        part = node.slice[0].slice
        if not isinstance(value, tuple) or len(node.slice) != 1:
            return _UNKNOWN
        if isinstance(part, cst.Index):
            return _computed(operator.getitem, value, self._value(part.value))
        assert isinstance(part, cst.Slice)
        ends = [self._value(each) if each is not None else None for each in (part.lower, part.upper, part.step)]
        return _computed(lambda of, *by: of[slice(*by)], value, *ends)

    def _attribute(self, node: cst.Attribute) -> _Value:
        named = self._code.qualified(node)
        if named.startswith("nki.language.tile_size."):
            return _TILE_SIZES.get(node.attr.value, _UNKNOWN)
        if named.startswith("nki.language."):
            return _Dtype(named.removeprefix("nki.language."))
        if isinstance(node.value, cst.Name) and self._is_enumeration(node.value.value):
            return _Member(node.value.value, node.attr.value)
        value = self._value(node.value)
        if isinstance(value, TensorArgument) and node.attr.value in ("shape", "dtype", "ndim"):
            return {"shape": value.shape, "dtype": _Dtype(value.dtype), "ndim": len(value.shape)}[node.attr.value]
        return _UNKNOWN

    def _is_enumeration(self, name: str) -> bool:
        if name not in self._enumerations:
            found = self._neighbours.class_of(name) if name not in self._values else None
            self._enumerations[name] = found is not None and _is_enumeration(found.node, found.scopes.qualified)
        return self._enumerations[name]

    def _call(self, node: cst.Call) -> _Value:
        name = self._code.qualified(node.func)
        values = [self._value(arg.value) for arg in node.args]
        if name == "nki.language.ndarray":
            return _Tile()
        if any(arg.star or arg.keyword is not None for arg in node.args) and not name.startswith("nki.language."):
            return _UNKNOWN
        made = _computed(_FUNCTIONS.get(name), *values)
        if name == "builtins.min":
            seen: set[int | None] = {at for at, value in enumerate(values) if value == made}
            known = self._found.least.get(node)
            self._found.least[node] = (seen if known is None else known & seen) if made is not _UNKNOWN else {None}
        return made


def _is_enumeration(node: cst.ClassDef, qualified: Callable[[cst.CSTNode], str]) -> bool:
    """Of members that are equal to nothing but themselves."""
    return len(node.bases) == 1 and not node.keywords and qualified(node.bases[0].value) == "enum.Enum" and not any(
        isinstance(each, cst.FunctionDef) and each.name.value == "__eq__" for each in node.body.body
    )  # fmt: skip


def _enumerations_in(code: KernelCode) -> list[str]:
    classes = [node for node in code.module.body if isinstance(node, cst.ClassDef)]
    return [node.name.value for node in classes if _is_enumeration(node, code.qualified)]


def _calculated(function: Callable[..., object] | None, left: _Value, right: _Value) -> _Value:
    """Of numbers: what else Python adds and multiplies can become very long."""
    numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
    return _computed(function, left, right) if numbers else _UNKNOWN


def _computed(function: Callable[..., object] | None, *values: _Value) -> _Value:
    if function is None or any(value is _UNKNOWN for value in values):
        return _UNKNOWN
    try:
        made = function(*values)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # compiling tells it
        return _UNKNOWN
    return _UNKNOWN if isinstance(made, int) and abs(made) > _LARGEST else made


def _numbers_of(module: cst.Module) -> dict[str, _Value]:
    """Names that the file binds once, at its top level, to a number."""
    found: dict[str, _Value] = {}
    for statement in module.body:
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if isinstance(small, cst.Assign) and len(small.targets) == 1 and isinstance(small.targets[0].target, cst.Name):
            name = small.targets[0].target.value
            number = small.value.evaluated_value if isinstance(small.value, (cst.Integer, cst.Float)) else _UNKNOWN
            found[name] = number if name not in found else _UNKNOWN
    return found
