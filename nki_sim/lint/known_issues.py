"""What a version's own release notes say does not work, although its documentation has it: each with the way round.

Source: "Known Issues" of NKI 0.2.0 to 0.6.0 (release notes of SDK 2.27 to 2.32); an issue is carried forward until a
later version's notes say that it is mended. Of 0.7 no page says so; what has no instruction is refused there too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache, wraps

from nki_sim.lint.device_values import values_of
from nki_sim.lint.findings import LAST_PARSED
from nki_sim.lint.kernel_source import KernelSource
from nki_sim.lint.name_rules import keywords_of
from nki_sim.lint.rules import Found, rule
from nki_sim.lint.tiles import BINARY, Tile, Tiles

Check = Callable[[KernelSource], Found]

_NO_INSTRUCTION = {
    "divide": "nl.multiply(x, nl.reciprocal(y))",
    "mod": "of a power of two: nl.bitwise_and(x, n - 1) on integers; else x minus y times the whole part of x / y",
    "fmod": "x minus y times the whole part of x / y, by nl.reciprocal and nl.multiply",
}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "nl.add(a, b)",
    ast.Sub: "nl.subtract(a, b)",
    ast.Mult: "nl.multiply(a, b)",
    ast.Div: "nl.multiply(a, nl.reciprocal(b))",
    ast.Pow: "nl.power(a, b)",
    ast.MatMult: "nisa.nc_matmul, or nl.matmul(a, b, transpose_x=True)",
    ast.BitAnd: "nl.bitwise_and(a, b)",
    ast.BitOr: "nl.bitwise_or(a, b)",
    ast.BitXor: "nl.bitwise_xor(a, b)",
}


def _issue(since: str, until: str = LAST_PARSED, severity: str = "error") -> Callable[[Check], Check]:
    """Register a check as `rule` does; each of its messages says of which versions the issue is known."""
    versions = f"NKI {since}" if since == until else f"NKI {since} to {until}"

    def register(check: Check) -> Check:
        @wraps(check)
        def found(source: KernelSource) -> Found:
            for node, message, hint in check(source):
                yield node, f"{message} (known issue of {versions})", hint

        return rule(since, until, severity)(found)

    return register


@lru_cache(maxsize=2)
def _tiles(source: KernelSource) -> Tiles:
    """Of the file that is being checked: several rules here ask for it."""
    return Tiles(source)


def _operand(call: ast.Call, place: int, name: str) -> ast.expr | None:
    return call.args[place] if len(call.args) > place else keywords_of(call).get(name)


# --- arithmetic -------------------------------------------------------------------------------------


@rule("0.3")
def not_on_hardware(source: KernelSource) -> Found:
    for call, name in source.calls():
        module, _, short = name.rpartition(".")
        if module == "nki.language" and short in _NO_INSTRUCTION:
            yield call, f"{name} has no instruction: it works in simulation only", _NO_INSTRUCTION[short]
        if name == "nki.language.matmul" and "transpose_x" not in keywords_of(call) and len(call.args) < 3:
            yield call, "nl.matmul needs transpose_x=True on hardware", "keep x as [K, M] and pass transpose_x=True"


@rule("0.2")
def tensor_operator(source: KernelSource) -> Found:
    """`a + b` on tiles was Beta 1."""
    tiles = _tiles(source)
    for node in source.in_kernels():
        if isinstance(node, ast.BinOp):
            sides = (node.left, node.right)
        elif isinstance(node, ast.AugAssign):
            sides = (node.target, node.value)
        else:
            continue
        if any(tiles.of(side) is not None for side in sides):
            hint = _OPERATORS.get(type(node.op), "a function of nki.language, or nisa.tensor_tensor")
            yield node, f"Python's operators on a tile ({ast.unparse(node)[:60]})", hint


@_issue("0.3")
def power_of_a_number(source: KernelSource) -> Found:
    tiles = _tiles(source)
    for call, name in source.calls():
        if name == "nki.language.power":
            for place, argument in enumerate("xy"):
                given = _operand(call, place, argument)
                if given is not None and tiles.number(given):
                    yield call, "nl.power takes two tiles, and no number", _POWER
                    break


_POWER = "nl.square(x) for 2, nl.sqrt(x) for 0.5, nisa.tensor_scalar(op0=nl.power), or a tile of nl.full"


@_issue("0.3")
def broadcast_operand(source: KernelSource) -> Found:
    for call, short, one, two in _pairs_with_a_column(source):
        if one.columns is not None and two.columns is not None:
            widths = f"{one.columns} and {two.columns}"
            yield call, f"nl.{short} of tiles with {widths} columns: shapes must be equal", _COLUMN


@_issue("0.3", severity="warning")
def possible_broadcast(source: KernelSource) -> Found:
    """As `broadcast_operand`, where the text does not say how wide the other tile is."""
    for call, short, one, two in _pairs_with_a_column(source):
        if one.columns is None or two.columns is None:
            yield call, f"nl.{short} of a column and a tile that may be wider: shapes must be equal", _COLUMN


_COLUMN = "nisa.tensor_scalar(dst=, data=tile, op0=, operand0=column)"


def _pairs_with_a_column(source: KernelSource) -> list[tuple[ast.Call, str, Tile, Tile]]:
    """Functions of two tiles, one of which has a single column and the other is not known to."""
    tiles = _tiles(source)
    found = []
    for call, name in source.calls():
        module, _, short = name.rpartition(".")
        if module == "nki.language" and short in BINARY:
            given = [_operand(call, 0, "x"), _operand(call, 1, "y")]
            one, two = (tiles.of(each) if each is not None else None for each in given)
            if one is not None and two is not None and (one.columns == 1) != (two.columns == 1):
                found.append((call, short, one, two))
    return found


# --- data movement ----------------------------------------------------------------------------------


@_issue("0.3", "0.3")
def store_from_psum(source: KernelSource) -> Found:
    for call, name in source.calls():
        value = _operand(call, 1, "value") if name == "nki.language.store" else None
        if value is not None and _in_psum(source, value):
            yield call, "nl.store does not take a tile in PSUM", "nisa.tensor_copy into SBUF first"


@_issue("0.3")
def copy_between_memories(source: KernelSource) -> Found:
    for call, name in source.calls():
        copied = _operand(call, 0, "x") if name == "nki.language.copy" else None
        if copied is not None and _in_psum(source, copied):
            yield call, "nl.copy does not copy from PSUM", "nisa.tensor_copy(dst=, src=)"


@_issue("0.3", severity="warning")
def copy_of_integers(source: KernelSource) -> Found:
    for call, name in source.calls():
        copied = _operand(call, 0, "x") if name == "nki.language.copy" else None
        held = values_of(source).of(copied) if copied is not None else None
        if held is not None and held.dtype in ("nki.language.int32", "nki.language.uint32"):
            yield call, "nl.copy goes through float32: integers beyond 2^23 change", "nisa.tensor_copy(dst=, src=)"


def _in_psum(source: KernelSource, node: ast.expr) -> bool:
    held = values_of(source).of(node)
    return held is not None and held.buffer == "nki.language.psum"


@_issue("0.5")
def vector_select_of_a_cast(source: KernelSource) -> Found:
    for call, _ in source.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == "vector_select":
            if any(isinstance(n, ast.Attribute) and n.attr == "reinterpret_cast" for n in ast.walk(call.func.value)):
                yield call, "reinterpret_cast and vector_select do not go together", "select first, into a tile"


# --- instructions -----------------------------------------------------------------------------------


@_issue("0.2", "0.2", "warning")
def ignored_by_range_select(source: KernelSource) -> Found:
    for call, name in source.calls():
        for argument in sorted({"on_false_value", "reduce_cmd"} & set(keywords_of(call))):
            if name == "nki.isa.range_select":
                hint = "-3.4028235e+38 and reduce_cmd.reset_reduce hold whatever is given"
                yield call, f"nisa.range_select ignores {argument}", hint


@_issue("0.6", "0.6", "warning")
def implied_by_local_gather(source: KernelSource) -> Found:
    wanted = ("num_elem_per_idx", "num_valid_indices")
    for call, name in source.calls():
        if name == "nki.isa.local_gather" and len(call.args) < 5 and not set(wanted) <= set(keywords_of(call)):
            hint = f"give both, and a dst of {' * '.join(reversed(wanted))} columns"
            yield call, f"nisa.local_gather ignores {wanted[0]} unless {wanted[1]} says the same", hint


@_issue("0.3")
def seed_is_a_number(source: KernelSource) -> Found:
    tiles = _tiles(source)
    for call, name in source.calls():
        seed = _operand(call, 0, "seed") if name == "nki.language.random_seed" else None
        if seed is not None and tiles.number(seed):
            hint = "nl.random_seed(nl.full((1, 1), 42, dtype=nl.int32, buffer=nl.sbuf))"
            yield call, "nl.random_seed takes a [1, 1] tile, and no number", hint


# --- device loops -----------------------------------------------------------------------------------


@_issue("0.4", severity="warning")
def nested_dynamic_range(source: KernelSource) -> Found:
    loops = _dynamic_loops(source)
    for loop in loops:
        for node in (n for part in loop.body for n in ast.walk(part)):
            if node in loops:
                said = "a nl.dynamic_range in another: carried values fail with `Could not find register`"
                yield node, said, "make the outer loop a range where its count is known"


@_issue("0.3", "0.3")
def index_of_dynamic_range(source: KernelSource) -> Found:
    for loop in _dynamic_loops(source):
        name = loop.target.id if isinstance(loop.target, ast.Name) else ""
        for node in (n for part in loop.body for n in ast.walk(part)):
            places = [node.left, node.right] if isinstance(node, ast.BinOp) else []
            places += [node.slice] if isinstance(node, ast.Subscript) else []
            if isinstance(node, ast.Call):
                places += [value for key, value in keywords_of(node).items() if key == "scalar_offset"]
            if any(isinstance(each, ast.Name) and each.id == name for each in places):
                said = f"{name}, the index of nl.dynamic_range, cannot say where or be computed with"
                yield node, said, "range, where offsets are computed from it"


def _dynamic_loops(source: KernelSource) -> list[ast.For]:
    return [
        node
        for node in source.in_kernels()
        if isinstance(node, ast.For)
        and isinstance(node.iter, ast.Call)
        and source.dotted(node.iter.func) == "nki.language.dynamic_range"
    ]
