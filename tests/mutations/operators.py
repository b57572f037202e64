"""Ways to make a kernel wrong: each changes one statement of its Python, and says which.

An operator takes a spot and gives the statements that stand there instead, or nothing where it does not apply.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

DELTAS = (1.9e-5, -1e-5, 5e-6)
"""Relative; all below the published bound of 2e-5."""


@dataclass(frozen=True)
class Spot:
    """One statement of the kernel, where it stands."""

    body: list[ast.stmt] = field(repr=False)
    index: int
    loops: tuple[ast.For, ...]
    """Around it, outermost first."""
    parameters: tuple[str, ...]
    homes: dict[str, int]
    """How many loops stand around the line that makes each variable."""

    @property
    def statement(self) -> ast.stmt:
        return self.body[self.index]

    @property
    def counters(self) -> tuple[str, ...]:
        return tuple(loop.target.id for loop in self.loops if isinstance(loop.target, ast.Name))


Result = list[ast.stmt]
Operator = Callable[[Spot], Iterator[Result]]


def spots(tree: ast.Module) -> list[Spot]:
    """Every statement inside the kernel function, in the order of the text; module constants last."""
    function = next(f for f in tree.body if isinstance(f, ast.FunctionDef) and f.decorator_list)
    parameters = tuple(a.arg for a in function.args.args)
    found: list[Spot] = []
    homes: dict[str, int] = {}

    def walk(body: list[ast.stmt], loops: tuple[ast.For, ...]) -> None:
        for index, statement in enumerate(body):
            found.append(Spot(body, index, loops, parameters, homes))
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                homes[statement.targets[0].id] = len(loops)
            if isinstance(statement, ast.For):
                walk(statement.body, (*loops, statement))
            elif isinstance(statement, ast.If):
                walk(statement.body, loops)

    walk(function.body, ())
    found += [Spot(tree.body, index, (), parameters, homes) for index in range(tree.body.index(function))]
    return found


def _call(spot: Spot, *names: str) -> ast.Call | None:
    """A copy of the spot's `nisa.<name>(...)`, for one of the names."""
    value = spot.statement.value if isinstance(spot.statement, ast.Expr) else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in names:
        return copy.deepcopy(value)
    return None


def _operand(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def _text(call: ast.Call, name: str) -> str:
    value = _operand(call, name)
    return "" if value is None else ast.unparse(value)


def _without(call: ast.Call, *names: str) -> ast.Call:
    return ast.Call(call.func, call.args, [k for k in call.keywords if k.arg not in names])


def _with(call: ast.Call, **values: str) -> ast.Call:
    changed = _without(call, *values)
    changed.keywords += [ast.keyword(name, _expression(text)) for name, text in values.items()]
    return changed


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _lines(text: str) -> Result:
    return ast.parse(text).body


def _as(call: ast.Call) -> Result:
    return [ast.Expr(call)]


def _root(node: ast.expr | None) -> str:
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def drop_a_term(spot: Spot) -> Iterator[Result]:
    if call := _call(spot, "tensor_tensor"):
        for kept in ("data1", "data2"):
            yield _lines(f"nisa.tensor_copy(dst={_text(call, 'dst')}, src={_text(call, kept)})")
    if call := _call(spot, "scalar_tensor_tensor"):
        changed = _without(call, "op1", "operand1")
        assert isinstance(changed.func, ast.Attribute)
        changed.func.attr = "tensor_scalar"
        yield _as(changed)
    if call := _call(spot, "activation", "activation_reduce"):
        for name in ("bias", "scale"):
            if _operand(call, name) is not None:
                yield _as(_without(call, name))
    if call := _call(spot, "tensor_scalar"):
        yield _lines(f"nisa.tensor_copy(dst={_text(call, 'dst')}, src={_text(call, 'data')})")
    if call := _call(spot, "tensor_reduce"):
        if _operand(call, "negate") is not None:
            yield _as(_without(call, "negate"))


def skip_a_tile(spot: Spot) -> Iterator[Result]:
    loop = spot.statement
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call) or not isinstance(loop.target, ast.Name):
        return
    for which in ("0", f"{ast.unparse(loop.iter.args[-1])} - 1"):
        changed = copy.deepcopy(loop)
        changed.body.insert(0, _lines(f"if {loop.target.id} == {which}:\n    continue")[0])
        yield [changed]


def stale_buffer(spot: Spot) -> Iterator[Result]:
    """What the round before loaded, or made, is used once more."""
    call = _call(spot, "dma_copy", "nc_transpose", "tensor_copy", "nc_matmul")
    for name in ("src", "data", "moving", "stationary") if call else ():
        assert call is not None
        for counter in spot.counters:
            changed = copy.deepcopy(call)
            value = _operand(changed, name)
            if value is None or counter not in {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}:
                continue
            _replace(changed, name, _Renamed(counter, f"max({counter} - 1, 0)").visit(value))
            yield _as(changed)


def doubled_work(spot: Spot) -> Iterator[Result]:
    again: ast.Call | None = _call(spot, "nc_matmul")
    if again is None and (call := _call(spot, "tensor_tensor")) and _text(call, "dst") == _text(call, "data1"):
        again = call
    if again is None:
        return
    yield [spot.statement, *_as(again)]
    if spot.counters:
        yield [spot.statement, *_lines(f"if {spot.counters[-1]} == 0:\n    {ast.unparse(again)}")]


def off_by_one_slice(spot: Spot) -> Iterator[Result]:
    call = _call(spot, "dma_copy", "nc_transpose", "tensor_copy", "nc_matmul", "tensor_tensor", "activation")
    for name in ("src", "data", "moving", "stationary", "dst") if call else ():
        assert call is not None
        value = _operand(call, name)
        for number, part in enumerate(n for n in ast.walk(value) if isinstance(n, ast.Slice)) if value else ():
            used = {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
            for counter in (c for c in spot.counters if c in used):
                changed = copy.deepcopy(call)
                target = _operand(changed, name)
                assert target is not None
                piece = [n for n in ast.walk(target) if isinstance(n, ast.Slice)][number]
                assert piece.lower is not None and piece.upper is not None
                piece.lower = _expression(f"{ast.unparse(piece.lower)} + ({counter} == 0)")
                piece.upper = _expression(f"{ast.unparse(piece.upper)} + ({counter} == 0)")
                yield _as(changed)


OTHER = {"add": "subtract", "subtract": "add", "multiply": "add", "maximum": "minimum"}


def swapped_operands(spot: Spot) -> Iterator[Result]:
    if call := _call(spot, "tensor_tensor"):
        if _text(call, "op") == "nl.subtract":
            yield _as(_with(call, data1=_text(call, "data2"), data2=_text(call, "data1")))
        yield _as(_with(call, op=f"nl.{OTHER[_text(call, 'op')[3:]]}"))
    if call := _call(spot, "scalar_tensor_tensor", "tensor_tensor_scan"):
        yield _as(_with(call, op0=_text(call, "op1"), op1=_text(call, "op0")))
        if _operand(call, "data0") is not None:
            yield _as(_with(call, data0=_text(call, "data1"), data1=_text(call, "data0")))
    if call := _call(spot, "nc_matmul"):
        yield _as(_with(call, stationary=_text(call, "moving"), moving=_text(call, "stationary")))
    call = _call(spot, "dma_copy")
    source = _operand(call, "src") if call else None
    if call and _root(source) in spot.parameters:
        name = _root(source)
        other = spot.parameters[(spot.parameters.index(name) + 1) % len(spot.parameters)]
        if other != name:
            assert source is not None
            _replace(call, "src", _Renamed(name, other).visit(source))
            yield _as(call)


def wrong_epsilon(spot: Spot) -> Iterator[Result]:
    statement = spot.statement
    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "EPSILON":
        for times in ("0.0", "10.0", "1.001"):
            yield _lines(f"{ast.unparse(statement)} * {times}")
    call = _call(spot, "memset")
    if call and _text(call, "value") == "eps":
        for times in ("0.0", "10.0", "1.001"):
            yield _as(_with(call, value=f"eps * {times}"))
    call = _call(spot, "activation", "activation_reduce")
    if call and _text(call, "scale").startswith("1.0 / ") and "BETA" not in _text(call, "scale"):
        count = _text(call, "scale").removeprefix("1.0 / ")
        yield _as(_with(call, scale=f"1.0 / ({count} - 1)"))
        yield _as(_with(call, scale=f"1.0 / ({count} + 0.002)"))


def missing_accumulate(spot: Spot) -> Iterator[Result]:
    call = _call(spot, "nc_matmul")
    if call and spot.homes.get(_root(_operand(call, "dst")), 99) < len(spot.loops):
        yield _as(_with(call, accumulate="False"))
    call = _call(spot, "tensor_tensor")
    if call and _text(call, "dst") == _text(call, "data1"):
        yield _lines(f"nisa.tensor_copy(dst={_text(call, 'dst')}, src={_text(call, 'data2')})")
    call = _call(spot, "tensor_tensor_scan")
    if call:
        yield _as(_with(call, initial="0.0"))
    call = _call(spot, "tensor_copy")
    if call and _root(_operand(call, "dst")) == "state":
        yield [ast.Pass()]


def early_bf16(spot: Spot) -> Iterator[Result]:
    statement = spot.statement
    made = statement.value if isinstance(statement, ast.Assign) else None
    if isinstance(made, ast.Call) and _text(made, "buffer") == "nl.sbuf":
        yield [ast.Assign(statement.targets, _with(made, dtype="nl.bfloat16"), lineno=0)]  # type: ignore[attr-defined]


def removed_dependency(spot: Spot) -> Iterator[Result]:
    """Two cores that no longer wait for each other; or wait before there is anything to wait for."""
    if _call(spot, "core_barrier"):
        yield [ast.Pass()]
    barrier = next((s for s in spot.body if isinstance(s, ast.Expr) and "core_barrier" in ast.unparse(s)), None)
    if barrier is not None and isinstance(spot.statement, ast.For):
        if spot.body.index(barrier) > spot.index:
            yield [copy.deepcopy(barrier), spot.statement]
        else:
            yield [spot.statement, copy.deepcopy(barrier)]


def scaled_constant(spot: Spot) -> Iterator[Result]:
    """By less than the published bound: a constant, or what is stored: all of it, one tile, one row or one column."""
    statement = spot.statement
    value = statement.value if isinstance(statement, ast.Assign) else None
    if isinstance(value, ast.Constant) and isinstance(value.value, float):
        for delta in DELTAS[:2]:
            yield _lines(f"{ast.unparse(statement)} * {1 + delta}")
    call = _call(spot, "tensor_scalar", "scalar_tensor_tensor")
    operand = _operand(call, "operand0") if call else None
    if call and operand is not None and any(isinstance(n, ast.Constant) for n in ast.walk(operand)):
        if not isinstance(operand, (ast.Name, ast.Subscript)):
            yield _as(_with(call, operand0=f"({ast.unparse(operand)}) * {1 + DELTAS[1]}"))
    call = _call(spot, "activation")
    if call and _text(call, "scale").startswith("1.0"):
        yield _as(_with(call, scale=f"{_text(call, 'scale')} * {1 + DELTAS[0]}"))
    call = _call(spot, "dma_copy")
    if call and _root(_operand(call, "dst")) == "result":
        stored = _operand(call, "src")
        assert stored is not None
        name = _root(stored)
        for delta, part, when in (
            (DELTAS[0], "", ""),
            (DELTAS[2], "", ""),
            (DELTAS[1], "", f"{spot.counters[-1]} == 0" if spot.counters else ""),
            (DELTAS[0], "[0:1]", ""),
            (DELTAS[0], "[:, 0:1]", ""),
        ):
            whole = ast.unparse(stored) if not part else f"{name}{part}"
            times = f"nisa.tensor_scalar(dst={whole}, data={whole}, op0=nl.multiply, operand0={1 + delta})"
            yield [*_lines(f"if {when}:\n    {times}" if when else times), statement]


def clamped(spot: Spot) -> Iterator[Result]:
    """Arguments, or results, that are right only where tests on standard normal inputs look."""
    call = _call(spot, "activation", "activation_reduce")
    if call and _text(call, "op") in ("nl.silu", "nl.exp"):
        data = _text(call, "data")
        limits = (("maximum", -20.0),) if _text(call, "op") == "nl.silu" else (("minimum", 80.0),)
        for op, limit in limits:
            if data.isidentifier():
                yield [
                    *_lines(f"nisa.tensor_scalar(dst={data}, data={data}, op0=nl.{op}, operand0={limit})"),
                    *_as(call),
                ]
        if _operand(call, "bias") is not None:
            yield [
                *_lines(f"nisa.tensor_scalar(dst={data}, data={data}, op0=nl.minimum, operand0=80.0)"),
                *_as(_without(call, "bias")),
            ]
    call = _call(spot, "dma_copy")
    if call and _root(_operand(call, "dst")) == "result" and _text(call, "src").isidentifier():
        name = _text(call, "src")
        yield [*_lines(f"nisa.tensor_scalar(dst={name}, data={name}, op0=nl.minimum, operand0=200.0)"), spot.statement]


def _loaded(spot: Spot) -> str:
    """Where an argument of the kernel is loaded to, if that is what this statement does."""
    call = _call(spot, "dma_copy")
    return _text(call, "dst") if call and _root(_operand(call, "src")) in spot.parameters else ""


def ignored_input(spot: Spot) -> Iterator[Result]:
    """A constant in place of what is loaded: in all of a tile, or in one row of it."""
    if tile := _loaded(spot):
        for value in ("0.0", "1.0"):
            yield _lines(f"nisa.memset(dst={tile}, value={value})")
        if tile.isidentifier():
            yield [spot.statement, *_lines(f"nisa.memset(dst={tile}[0:1], value=1.0)")]


def clamped_input(spot: Spot) -> Iterator[Result]:
    if tile := _loaded(spot):
        for op, limit in (("minimum", 4.0), ("maximum", -4.0), ("minimum", 150.0)):
            yield [
                spot.statement,
                *_lines(f"nisa.tensor_scalar(dst={tile}, data={tile}, op0=nl.{op}, operand0={limit})"),
            ]


def shifted_input(spot: Spot) -> Iterator[Result]:
    """By a number, or by a row."""
    if tile := _loaded(spot):
        for shift in (1e-2, -1e-4):
            yield [
                spot.statement,
                *_lines(f"nisa.tensor_scalar(dst={tile}, data={tile}, op0=nl.add, operand0={shift})"),
            ]
        if tile.isidentifier():
            yield [spot.statement, *_lines(f"nisa.dma_copy(dst={tile}[1:2], src={tile}[0:1])")]


OPERATORS: dict[str, Operator] = {
    "drop a term": drop_a_term,
    "skip a tile": skip_a_tile,
    "stale buffer": stale_buffer,
    "doubled work": doubled_work,
    "off-by-one slice": off_by_one_slice,
    "swapped operands": swapped_operands,
    "wrong epsilon": wrong_epsilon,
    "missing accumulate": missing_accumulate,
    "early bf16": early_bf16,
    "removed dependency": removed_dependency,
    "scaled constant": scaled_constant,
    "clamped": clamped,
    "ignored input": ignored_input,
    "clamped input": clamped_input,
    "shifted input": shifted_input,
}

OF_INPUTS = ("ignored input", "clamped input", "shifted input")
MUST_ALL_BE_CAUGHT = ("skip a tile", "stale buffer", "doubled work", *OF_INPUTS)


class _Renamed(ast.NodeTransformer):
    def __init__(self, name: str, instead: str) -> None:
        self._name, self._instead = name, instead

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _expression(self._instead) if node.id == self._name else node


def _replace(call: ast.Call, name: str, value: ast.expr) -> None:
    for keyword in call.keywords:
        if keyword.arg == name:
            keyword.value = value
