"""One rewrite for each function of the old API that returns a tile."""

from __future__ import annotations

import ast
from collections.abc import Callable

from nki_sim.beta1.facts import GridFact, Sum, TileFact
from nki_sim.beta1.instrument import number_of
from nki_sim.machine import ISA
from nki_sim.migrate import calls
from nki_sim.migrate.beta1.lowering import LOWERED, Lower, Lowering
from nki_sim.migrate.calls import constant
from nki_sim.migrate.code import dtype_text
from nki_sim.migrate.operands import NO_CLIP, Clip, NeedsPerson, Operand, clipped

Given = dict[str, ast.expr]


def _rule(*names: str) -> Callable[[Lower], Lower]:
    def mark(function: Lower) -> Lower:
        LOWERED.update(dict.fromkeys(names, function))
        return function

    return mark


def _on_chip(target: Operand | None) -> str:
    return target.memory if target is not None and target.memory != "hbm" else "sbuf"


def _tiles(low: Lowering, node: ast.expr, clip: Clip = NO_CLIP) -> Operand:
    """An operand an engine can read: not in HBM."""
    data = low.operand(node)
    return clipped(low.staged(data) if data.memory == "hbm" else data, clip)


def _direct(low: Lowering, node: ast.expr, clip: Clip = NO_CLIP, loose: bool = False) -> Operand:
    """A subscript keeps its own bounds under a mask: what is masked out may lie outside the tensor."""
    if isinstance(node, ast.Subscript):
        return low.operand(node, clip, loose)
    return clipped(low.operand(node), clip)


def _near(low: Lowering, node: ast.expr, clip: Clip = NO_CLIP) -> Operand:
    """The same where an engine can read it."""
    data = _direct(low, node, clip)
    return low.staged(data) if data.memory == "hbm" else data


def _engine(low: Lowering, given: Given) -> str | None:
    node = given.get("engine")
    if node is None or low.calls.name(node).endswith("unknown_engine"):
        return None
    return low.calls.name(node) or low.source.of(node)


def _rows(clip: Clip) -> Clip:
    return {axis: text for axis, text in clip.items() if axis == 0}


def _made(
    low: Lowering, fact: TileFact, target: Operand | None, wish: str, masked: tuple[Clip, str | None], function: str,
    memory: str = "", dtype: str = "", **arguments: str | None,
) -> Operand:  # fmt: skip
    """One instruction into a new tile, or into the target; `masked`: where its result is cut off, and on what
    condition it is issued."""
    clip, guard = masked
    dst = low.new(fact, target, memory or _on_chip(target), wish, dtype)
    with low.out.only_if(guard):
        low.out.call(function, dst=clipped(dst, clip).text, **arguments)
        return low.finished(dst, target, clip)


_ALWAYS: tuple[Clip, str | None] = (NO_CLIP, None)


# --- moves ------------------------------------------------------------------------------------------


@_rule("load")
def _load(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    dst = low.new(fact, target, "sbuf", "loaded")
    with low.out.only_if(guard):
        source = _direct(low, given["src"], clip, loose=True)
        low.out.call("nisa.dma_copy", dst=clipped(dst, clip).text, src=source.text)
    return low.finished(dst, target, clip)


@_rule("copy", "tensor_copy", "static_cast")
def _copy(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    node = given.get("src") or given["x"]
    source, engine = _near(low, node, clip), _engine(low, given)
    return _made(low, fact, target, "copied", (clip, guard), "nisa.tensor_copy", src=source.text, engine=engine)


@_rule("memset")
def _memset(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    dst = low.new(fact, target, _on_chip(target), "filled")
    memset(low, dst, given["value"])
    return low.finished(dst, target)


@_rule("full", "zeros", "ones")
def _filled(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    """A constant tile as an operand of something else."""
    dst = low.new(fact, target, _on_chip(target), "filled")
    memset(low, dst, given["fill_value"])
    return low.finished(dst, target)


def memset(low: Lowering, dst: Operand, value: ast.expr) -> None:
    """A fill; its value is a float where the tile's dtype is one."""
    plain = isinstance(value, ast.Constant)
    text = ast.unparse(value) if plain else calls.number(value) or low.rewritten(value)
    if "float" in dst.dtype and text.lstrip("-").isdigit():
        text += ".0"
    low.out.call("nisa.memset", dst=dst.text, value=text)


@_rule("load_transpose2d")
def _load_transposed(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    source = _direct(low, given["src"])
    if source.shape[0].value > ISA.partitions:
        return _load_transposed_by_parts(low, source, fact, target)
    loaded = low.out.allocate(low.out.names.new("loaded"), source.shape, fact.dtype, "sbuf")
    low.out.call("nisa.dma_copy", dst=loaded.text, src=source.text)
    psum = low.out.allocate(low.out.names.new("transposed"), fact.shape, fact.dtype, "psum")
    low.out.call("nisa.nc_transpose", dst=psum.text, data=loaded.text)
    return _made(low, fact, target, "transposed", _ALWAYS, "nisa.tensor_copy", "sbuf", src=psum.text)


def _load_transposed_by_parts(low: Lowering, source: Operand, fact: TileFact, target: Operand | None) -> Operand:
    """More rows than there are partitions: as many at a time as there are."""
    rows, size = source.shape[0].value, ISA.partitions
    if rows % size or not source.text.isidentifier() and not source.text.endswith("]"):
        raise NeedsPerson("shape", f"nl.load_transpose2d of {rows} rows, which are no multiple of {size}")
    dst = low.new(fact, target, "sbuf", "transposed")
    part, loaded, turned = (low.out.names.new(wish) for wish in ("part", "loaded", "turned"))
    dtype, columns = dtype_text(fact.dtype), source.shape[1].text
    low.out.add(f"for {part} in range(0, {rows}, {size}):")
    low.out.add(f"    {loaded} = nl.ndarray(({size}, {columns}), dtype={dtype}, buffer=nl.sbuf)")
    low.out.add(f"    nisa.dma_copy(dst={loaded}, src={source.text}[{part}:{part} + {size}, :])")
    low.out.add(f"    {turned} = nl.ndarray(({columns}, {size}), dtype={dtype}, buffer=nl.psum)")
    low.out.add(f"    nisa.nc_transpose(dst={turned}, data={loaded})")
    low.out.add(f"    nisa.tensor_copy(dst={dst.text}[:, {part}:{part} + {size}], src={turned})")
    return low.finished(dst, target)


@_rule("broadcast_to")
def _broadcast_to(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    wide = low._broadcast(low.operand(given["src"]), fact)
    return wide if target is None else low.copied(wide, target, fact.dtype)


# --- TensorE ----------------------------------------------------------------------------------------


@_rule("nc_matmul")
def _matmul(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    # rows of the result are columns of the stationary operand
    parts = [{1: clip[which]} if which in clip else NO_CLIP for which in (0, 1)]
    stationary, moving = (
        low.in_sbuf(_direct(low, given[name], part)) for name, part in zip(("stationary", "moving"), parts)
    )
    dst = low.new(fact, target, "psum", "product", fact.dtype)
    flags = {
        name: "True"
        for name in ("is_stationary_onezero", "is_moving_onezero", "is_transpose")
        if constant(given.get(name), False)
    }
    extra = {name: low.source.of(given[name]) for name in ("tile_position", "tile_size") if name in given}
    with low.out.only_if(guard):
        low.out.call(
            "nisa.nc_matmul",
            dst=clipped(dst, clip).text,
            stationary=stationary.text,
            moving=moving.text,
            **flags,
            **extra,
            accumulate="False" if low.overwrites and dst is target else None,
        )
        return low.finished(dst, target, clip)


@_rule("matmul")
def _language_matmul(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    if "mask" in given and low.mask(given["mask"])[0]:
        raise NeedsPerson("mask", "nl.matmul under a mask")
    stationary, moving = _tiles(low, given["x"]), _tiles(low, given["y"])
    if not constant(given.get("transpose_x"), False):
        shape = (stationary.shape[1], stationary.shape[0])
        turned = low.out.allocate(low.out.names.new("transposed"), shape, stationary.dtype, "psum")
        low.out.call("nisa.nc_transpose", dst=turned.text, data=low.in_sbuf(stationary).text)
        stationary = low.in_sbuf(turned)
    dst = low.new(fact, target, "psum", "product", "float32")
    low.out.call(
        "nisa.nc_matmul",
        dst=dst.text,
        stationary=low.in_sbuf(stationary).text,
        moving=low.in_sbuf(moving).text,
        accumulate="False" if low.overwrites and dst is target else None,
    )
    return low.finished(dst, target)


@_rule("nc_transpose", "transpose")
def _transpose(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    data = _near(low, given.get("data") or given["x"], clip)
    turned = {1 - axis: text for axis, text in clip.items() if axis < 2}
    on_tensor = fact.memory == "psum"
    if on_tensor:
        data = low.in_sbuf(data)
    return _made(
        low, fact, target, "transposed", (turned, guard), "nisa.nc_transpose", "psum" if on_tensor else "sbuf",
        data.dtype, data=data.text, engine=_engine(low, given),
    )  # fmt: skip


# --- ScalarE ----------------------------------------------------------------------------------------


@_rule("activation", "activation_reduce")
def _activation(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    data = _tiles(low, given["data"], clip)
    beside = {
        name: clipped(low.as_float32(low.operand(given[name])), _rows(clip)).text
        for name in ("bias", "scale")
        if name in given
    }
    extra = {}
    if "reduce_res" in given:
        extra["reduce_op"] = low.op(given["reduce_op"]) if "reduce_op" in given else "nl.add"
        extra["reduce_res"] = low.operand(given["reduce_res"]).text
        extra["reduce_cmd"] = "nisa.reduce_cmd.reset_reduce"
    return _made(
        low, fact, target, "activated", (clip, guard), "nisa.activation", op=low.op(given["op"]), data=data.text,
        **beside, **extra,
    )  # fmt: skip


@_rule("function")
def _function(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    """`nl.exp(x)`: on ScalarE."""
    return _activation(low, {**given, "data": given["x"]}, fact, target)


# --- VectorE ----------------------------------------------------------------------------------------


@_rule("reciprocal")
def _reciprocal(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    data = _tiles(low, given.get("data") or given["x"], clip)
    return _made(low, fact, target, "inverse", (clip, guard), "nisa.reciprocal", data=data.text)


@_rule("negative")
def _negative(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    if guard:
        raise NeedsPerson("mask", "nl.negative under a condition")
    return low.scaled(_tiles(low, given["x"]), "multiply", "-1.0", fact, target, clip)


@_rule("abs", "floor", "ceil", "trunc", "sin", "cos")
def _same_function(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    raise NeedsPerson("function", "this nl function has no single instruction")


@_rule("tensor_reduce", "reduction")
def _reduce(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    node = given.get("data") or given["x"]
    data = _direct(low, node, clip) if isinstance(node, ast.Subscript) else _tiles(low, node, clip)
    if data.memory == "hbm":
        data = low.staged(data)
    text, axis = _trailing(low, data, given["axis"])
    negate = low.source.of(given["negate"]) if constant(given.get("negate"), False) else None
    return _made(
        low, fact, target, "reduced", (_rows(clip), guard), "nisa.tensor_reduce", op=low.op(given["op"]), data=text,
        axis=axis, negate=negate,
    )  # fmt: skip


def _trailing(low: Lowering, data: Operand, axis: ast.expr) -> tuple[str, str]:
    """Operand and axes with the reduced dimensions last, where the current instruction wants them."""
    given = constant(axis)
    rank = len(data.shape)
    axes = sorted((a + rank) % rank for a in ([given] if isinstance(given, int) else given))
    last = list(range(rank - len(axes), rank))
    shown = str(last[0]) if len(last) == 1 else str(tuple(last))
    if axes == last:
        return data.text, shown
    order = tuple(k for k in range(rank) if k not in axes) + tuple(axes)
    return f"{data.text}.permute({order})", shown


@_rule("mean")
def _mean(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    if guard:
        raise NeedsPerson("mask", "nl.mean under a condition")
    data = _tiles(low, given["x"], clip)
    text, axis = _trailing(low, data, given["axis"])
    total = low.out.allocate(low.out.names.new("total"), fact.shape, "float32", "sbuf")
    low.out.call("nisa.tensor_reduce", dst=clipped(total, _rows(clip)).text, op="nl.add", data=text, axis=axis)
    axes = constant(given["axis"])
    sizes = [data.shape[a].text for a in ([axes] if isinstance(axes, int) else axes)]
    return low.scaled(total, "multiply", f"1.0 / ({' * '.join(sizes)})", fact, target, _rows(clip))


@_rule("tensor_tensor")
def _tensor_tensor(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    one, two = low.operand(given["data1"]), low.operand(given["data2"])
    dst = low.new(fact, target, _on_chip(target), "result")
    with low.out.only_if(guard):
        low.combine(low.op(given["op"]).removeprefix("nl."), one, two, dst, fact, clip)
        return low.finished(dst, target, clip)


@_rule("tensor_scalar", "scalar_tensor_tensor")
def _tensor_scalar(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    data = _tiles(low, given["data"], clip)
    rest: dict[str, str] = {}
    for step in [k for k in "01" if f"op{k}" in given]:
        op, value = low.op(given[f"op{step}"]), low.operand(given[f"operand{step}"])
        part = _rows(clip) if value.is_column() else clip
        value = low.as_float32(value) if value.is_column() else value
        reverse = constant(given.get(f"reverse{step}"), False)
        if op == "nl.divide":
            if reverse:
                raise NeedsPerson("divide", "no engine divides by a tile: nisa.reciprocal of it, and multiply")
            op, value = "nl.multiply", low.inverse(value, part)
        rest |= {f"op{step}": op, f"operand{step}": clipped(value, part).text}
        rest |= {f"reverse{step}": "True"} if reverse else {}
    wide = "operand1" in given and "operand0" in given and _is_wide(low, given["operand1"])
    function = "nisa.scalar_tensor_tensor" if wide else "nisa.tensor_scalar"
    engine = _engine(low, given)
    return _made(low, fact, target, "result", (clip, guard), function, data=data.text, **rest, engine=engine)


def _is_wide(low: Lowering, node: ast.expr) -> bool:
    fact = low.fact(node)
    return fact is not None and any(size.value != 1 for size in fact.shape[1:])


@_rule("tensor_tensor_scan")
def _scan(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    one, two = _tiles(low, given["data0"], clip), _tiles(low, given["data1"], clip)
    start = clipped(low.operand(given["initial"]), _rows(clip))
    flags = {name: "True" for name in ("reverse0", "reverse1") if constant(given.get(name), False)}
    return _made(
        low, fact, target, "scanned", (clip, guard), "nisa.tensor_tensor_scan", "sbuf", data0=one.text, data1=two.text,
        initial=start.text, op0=low.op(given["op0"]), op1=low.op(given["op1"]), **flags,
    )  # fmt: skip


@_rule("tensor_scalar_reduce")
def _scalar_reduce(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    if clip or guard:
        raise NeedsPerson("mask", "nisa.tensor_scalar_reduce under a mask")
    number = low.operand(given["operand0"])
    dst = low.new(fact, target, _on_chip(target), "result")
    low.out.call(
        "nisa.tensor_scalar_reduce",
        dst=dst.text,
        data=_tiles(low, given["data"]).text,
        op0=low.op(given["op0"]),
        operand0=low.as_float32(number).text,
        reduce_op=low.op(given["reduce_op"]),
        reduce_res=low.operand(given["reduce_res"]).text,
        reverse0="True" if constant(given.get("reverse0"), False) else None,
    )
    return low.finished(dst, target)


@_rule("where")
def _where(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    if clip or guard:
        raise NeedsPerson("mask", "nl.where under a mask")
    asked = given["condition"]
    condition = _as_tile(low, asked, fact.shape) if low.is_mask(asked) else low.operand(asked)
    one, two = (_whole(low, given[name], fact) for name in ("x", "y"))
    chosen = low.out.names.new("chosen")
    dtype = dtype_text(fact.dtype)
    low.out.add(f"{chosen} = nl.where({condition.text}, {one.text}, {two.text}, dtype={dtype})")
    made = Operand(chosen, fact.shape, fact.dtype, "sbuf", whole=True)
    return made if target is None else low.copied(made, target, fact.dtype)


@_rule("bn_stats", "bn_aggr")
def _statistics(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    data = _near(low, given["data"], clip)
    name = "nisa.bn_stats" if fact.sizes()[1] == 6 else "nisa.bn_aggr"
    return _made(low, fact, target, "statistics", (_rows(clip), guard), name, data=data.text)


def _search(name: str, *roles: str) -> None:
    """An instruction whose operands are all tiles, and which takes no mask."""

    @_rule(name)
    def search(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
        clip, guard = low.mask(given.get("mask"))
        if clip or guard:
            raise NeedsPerson("mask", f"nisa.{name} under a mask")
        more = {key: low.source.of(given[key]) for key in ("imm",) if key in given}
        tiles = {role: _tiles(low, given[role]).text for role in roles}
        return _made(low, fact, target, "found", _ALWAYS, f"nisa.{name}", **tiles, **more)


_search("max8", "src")
_search("nc_find_index8", "data", "vals")
_search("nc_match_replace8", "data", "vals")


# --- GpSimd -----------------------------------------------------------------------------------------


def _affine(low: Lowering, node: ast.expr, kind: str, shape: tuple[Sum, ...]) -> list[dict[str, str]]:
    """Pattern, offset and channel multiplier of an index grid, or of each condition of a mask."""
    seen = low.watcher.seen.get(number_of(node))
    fact = seen.only() if seen is not None else None
    if not isinstance(fact, GridFact) or fact.kind != kind or fact.never:
        raise NeedsPerson("affine", f"{ast.unparse(node)} is not affine, or not the same at every visit")
    found = []
    for form in fact.seen_from(low.scope).forms if kind == "mask" else (fact.seen_from(low.scope),):
        assert form.base is not None
        steps = (Sum.of(0),) * (len(shape) - len(form.steps)) + form.steps
        pattern = ", ".join(f"[{step.text}, {size.text}]" for step, size in zip(steps[1:], shape[1:]))
        found.append({"pattern": f"[{pattern}]", "offset": form.base.text, "channel_multiplier": steps[0].text})
    return found


@_rule("affine_select")
def _affine_select(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    clip, guard = low.mask(given.get("mask"))
    if clip:
        raise NeedsPerson("mask", "nisa.affine_select under a mask that cuts it")
    conditions = _affine(low, given["pred"], "mask", fact.shape)
    if len(conditions) != 1:
        raise NeedsPerson("affine", f"{ast.unparse(given['pred'])} is not one affine condition")
    data = low.in_sbuf(_tiles(low, given["on_true_tile"]))
    return _made(
        low, fact, target, "selected", (NO_CLIP, guard), "nisa.affine_select", "sbuf", on_true_tile=data.text,
        on_false_value=low.rewritten(given["on_false_value"]), cmp_op="nl.greater", **conditions[0],
    )  # fmt: skip


def _whole(low: Lowering, node: ast.expr, fact: TileFact) -> Operand:
    """An operand that has to be a tile: of a number, one full of it."""
    value = low.operand(node)
    if not value.is_tile:
        value = low.out.allocate(low.out.names.new("filled"), fact.shape, fact.dtype, "sbuf")
        memset(low, value, node)
    return value


def _as_tile(low: Lowering, mask: ast.expr, shape: tuple[Sum, ...]) -> Operand:
    """A comparison of index grids as a tile: 1 where it holds, else 0."""
    ones = low.out.allocate(low.out.names.new("ones"), shape, "float32", "sbuf")
    low.out.call("nisa.memset", dst=ones.text, value="1.0")
    for condition in _affine(low, mask, "mask", shape):
        held = low.out.allocate(low.out.names.new("held"), shape, "float32", "sbuf")
        low.out.call(
            "nisa.affine_select", dst=held.text, on_true_tile=ones.text, on_false_value="0.0", cmp_op="nl.greater",
            **condition,
        )  # fmt: skip
        ones = held
    return ones


@_rule("tensor_partition_reduce")
def _partition_reduce(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    data = low.in_sbuf(_tiles(low, given["data"]))
    function, op = "nisa.tensor_partition_reduce", low.op(given["op"])
    return _made(low, fact, target, "reduced", _ALWAYS, function, "sbuf", op=op, data=data.text)


@_rule("iota")
def _iota(low: Lowering, given: Given, fact: TileFact, target: Operand | None) -> Operand:
    (places,) = _affine(low, given["expr"], "grid", fact.shape)
    return _made(low, fact, target, "positions", _ALWAYS, "nisa.iota", "sbuf", **places)
