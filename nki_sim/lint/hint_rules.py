"""Hints of NKI 0.7: nothing is wrong with these, and that version has a shorter way (its NkiScalar and tiles pages)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from nki_sim.lint.device_values import values_of
from nki_sim.lint.kernel_source import KernelSource
from nki_sim.lint.rules import Found, rule

_LOADED_DTYPES = ("nki.language.int32", "nki.language.int64")
"""Of tiles that nisa.scalar_load takes."""


@rule("0.7", severity="hint")
def register_as_offset(source: KernelSource) -> Found:
    """A register that is loaded once from an integer tile, and then only says where, or how often."""
    values = values_of(source)
    for function in source.kernel_code:
        uses = list(_uses(function, source))
        for load in (use for use in uses if use.function == "nki.isa.register_load" and use.place in ("0", "dst")):
            held, tile = values.of(load.node), _argument(load.call, "src", 1)
            others = [use for use in uses if use.node.id == load.node.id and use is not load]
            read_from = values.of(tile) if tile is not None else None
            if held is None or held.kind != "register" or read_from is None or read_from.dtype not in _LOADED_DTYPES:
                continue
            if others and all(use.says_where for use in others):
                name = load.node.id
                yield load.call, f"register {name} is an offset or a bound only", f"{name} = nisa.scalar_load(tile)"


@rule("0.7", severity="hint")
def offset_on_a_tile(source: KernelSource) -> Found:
    """A tile that an engine adds to or multiplies, for a register to be loaded from it."""
    for function in source.kernel_code:
        calls = [(node, source.dotted(node.func)) for node in ast.walk(function) if isinstance(node, ast.Call)]
        places = {"nki.isa.register_load": 1, "nki.isa.scalar_load": 0}
        tiles = [_argument(call, "src", places[name]) for call, name in calls if name in places]
        loaded = {ast.unparse(tile) for tile in tiles if tile is not None}
        for call, name in calls:
            dst = _argument(call, "dst", 0)
            if name == "nki.isa.tensor_scalar" and dst is not None and ast.unparse(dst) in loaded:
                yield call, "an offset is computed on a tile", "s = nisa.scalar_load(tile), then s * k + c"


@rule("0.7", severity="hint")
def tail_by_hand(source: KernelSource) -> Found:
    """`min(T, n - i * T)` in a loop over i, or the like with what is computed of i."""
    for loop in source.in_kernels():
        if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name):
            counters = {loop.target.id}
            for node in ast.walk(loop):
                if isinstance(node, ast.Assign) and _mentions(node.value, counters):
                    counters |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            for node in ast.walk(loop):
                if _cuts_off(node, counters):
                    yield node, "the last tile is cut off by hand", "for tile in nl.tiles(x, tile_shape=...)"


def _cuts_off(node: ast.AST, counters: set[str]) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "min"):
        return False
    rest = [side for side in node.args if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Sub)]
    return any(_mentions(side, counters) for side in rest)


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))


# --- where a name appears ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Use:
    """One appearance of a name, as an argument of a call."""

    node: ast.Name
    call: ast.Call
    function: str
    """Dotted name of what is called; for a method, `.` and its name."""
    place: str
    """The argument's keyword, or its number."""

    @property
    def says_where(self) -> bool:
        return (self.function, self.place) in {
            *((method, "scalar_offset") for method in (".ap", ".slice")),
            (".select", "1"),
            (".select", "index"),
            *(("nki.language.fori_loop", place) for place in ("0", "1", "lower", "upper")),
        }


def _uses(function: ast.AST, source: KernelSource) -> Iterator[_Use]:
    """Of names that are read; one that is no argument by itself is an argument of nothing."""
    seen: set[int] = set()
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        method = f".{call.func.attr}" if isinstance(call.func, ast.Attribute) else ""
        name = source.dotted(call.func) or method
        given = [(str(at), value) for at, value in enumerate(call.args)]
        for place, value in (*given, *((k.arg or "", k.value) for k in call.keywords)):
            if isinstance(value, ast.Name):
                seen.add(id(value))
                yield _Use(value, call, name, place)
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in seen:
            yield _Use(node, ast.Call(node, [], []), "", "")


def _argument(call: ast.Call, keyword: str, place: int) -> ast.expr | None:
    given = [k.value for k in call.keywords if k.arg == keyword] or call.args[place : place + 1]
    return given[0] if given else None
