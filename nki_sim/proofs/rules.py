"""What each instruction does to elements of a field: `nki_sim.isa`'s `compute`, without dtypes and rounding.

An opcode without a rule here is not provable, and the proof says so by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from nki_sim.contract.opcodes import OPCODES
from nki_sim.isa.arithmetic import ops
from nki_sim.isa.constants import matmul_perf_mode, reduce_cmd
from nki_sim.isa.gpsimd import affine_values
from nki_sim.isa.select import FLOAT32_MIN
from nki_sim.proofs.arithmetic import Arithmetic, Value
from nki_sim.proofs.operators import FUNCTIONS, applied, reduced
from nki_sim.proofs.proof import NotProvable


class Row(Protocol):
    """One instruction with its operands."""

    @property
    def attrs(self) -> Any: ...

    @property
    def algebra(self) -> Arithmetic: ...

    def has(self, role: str) -> bool: ...

    def updates(self, role: str) -> bool:
        """Does it keep some of what was there?"""
        ...

    def shape(self, role: str) -> tuple[int, ...]: ...

    def narrow(self, role: str) -> bool:
        """Has it elements of at most 32 bits?"""
        ...

    def read(self, role: str) -> Value: ...

    def flags(self) -> np.ndarray | None:
        """bool, shaped like dst, where that is in PSUM: what an accumulation group has written."""
        ...

    def write(self, role: str, value: Value) -> None:
        """`value` has as many elements as the operand, or broadcasts to it."""
        ...


Rule = Callable[[Row], None]


def _like_dst(row: Row, role: str) -> Value:
    return row.read(role).reshape(*row.shape("dst"))


def _column(row: Row, role: str, number: float | None) -> Value:
    """A constant, or one element for each partition, so that it broadcasts over dst."""
    if number is not None:
        return row.algebra.number(float(number))
    value = row.read(role)
    return value.reshape(value.shape[0], *(1,) * (len(row.shape("dst")) - 1))


def _scalar(row: Row, op: str, role: str, number: float | None) -> Value | None:
    """The second operand of `op`, which takes none if it is unary."""
    return None if ops.ALU[op].unary else _column(row, role, number)


def _by_partition(value: Value) -> Value:
    return value.reshape(value.shape[0], -1)


# --- moving ---------------------------------------------------------------------------------------


def _copy(row: Row) -> None:
    row.write("dst", _like_dst(row, "src"))


def _dma_transpose(row: Row) -> None:
    axes = row.attrs.axes
    row.write("dst", row.read("src").moved(lambda lane: lane.transpose(axes).reshape(row.shape("dst"))))


def _nc_transpose(row: Row) -> None:
    row.write("dst", _turned(row, "data"))
    flags = row.flags()
    if flags is not None:
        flags[...] = True


def _turned(row: Row, role: str) -> Value:
    return row.read(role).moved(lambda lane: lane.reshape(lane.shape[0], -1).T.reshape(row.shape("dst")))


def _memset(row: Row) -> None:
    row.write("dst", row.algebra.number(float(row.attrs.value)))


def _iota(row: Row) -> None:
    row.write("dst", row.algebra.integers(_affine(row)))


def _affine(row: Row) -> np.ndarray:
    attrs, shape = row.attrs, row.shape("dst")
    return affine_values(shape[0], attrs.pattern, attrs.offset, attrs.channel_multiplier).reshape(shape)


def _affine_select(row: Row) -> None:
    chosen = ops.ALU[row.attrs.cmp_op].function(_affine(row), 0)
    other = row.algebra.number(row.attrs.on_false_value)
    row.write("dst", row.algebra.where(chosen, _like_dst(row, "on_true_tile"), other))


def _by_its_own(opcode: str, data: str, indices: str | None = None) -> Rule:
    """Of an instruction that only moves: what the simulator does to numbers, done to elements."""

    def rule(row: Row) -> None:
        source = row.read(data)
        given = [] if indices is None else [row.algebra.small_integers(row.read(indices))]
        before = row.read("dst") if row.updates("dst") else None

        def moved(lane: np.ndarray, was: np.ndarray | None) -> np.ndarray:
            dst = np.zeros(row.shape("dst"), lane.dtype) if was is None else was.copy()
            OPCODES[opcode].compute([dst, lane, *given], row.attrs)
            return dst

        q = None if source.q is None else moved(source.q, None if before is None else before.q)
        row.write("dst", Value(moved(source.p, None if before is None else before.p), q))

    return rule


def _dma_compute(row: Row) -> None:
    total = _like_dst(row, "srcs[0]")
    for number in range(1, row.attrs.sources):
        total = row.algebra.add(total, _like_dst(row, f"srcs[{number}]"))
    row.write("dst", total)


def _register_set(row: Row) -> None:
    row.write("dst", row.algebra.integers(np.full(row.shape("dst"), row.attrs.value)))


def _scalar_store(row: Row) -> None:
    row.write("dst", _like_dst(row, "value"))


def _scalar_arithmetic(row: Row) -> None:
    """On the integers themselves: it wraps, and a field does not."""
    left = row.algebra.small_integers(row.read("left"))
    right = None if row.attrs.operand is not None else row.algebra.small_integers(row.read("right"))
    dtype = np.int32 if row.narrow("dst") else np.int64
    result = np.zeros(left.shape, dtype)
    given = [result, left.astype(dtype), *([] if right is None else [right.astype(dtype)])]
    OPCODES["scalar_arithmetic"].compute(given, row.attrs)
    row.write("dst", row.algebra.integers(result.astype(np.int64)))


# --- elementwise ----------------------------------------------------------------------------------


def _tensor_tensor(row: Row) -> None:
    row.write("dst", applied(row.algebra, row.attrs.op, _like_dst(row, "data1"), _like_dst(row, "data2")))


def _first_operator(row: Row, data: str = "data") -> Value:
    attrs = row.attrs
    operand = _scalar(row, attrs.op0, "operand0", attrs.operand0)
    return applied(row.algebra, attrs.op0, _like_dst(row, data), operand, attrs.reverse0, attrs.operand0)


def _tensor_scalar(row: Row) -> None:
    attrs, value = row.attrs, _first_operator(row)
    if attrs.op1 is not None:
        operand = _scalar(row, attrs.op1, "operand1", attrs.operand1)
        value = applied(row.algebra, attrs.op1, value, operand, attrs.reverse1, attrs.operand1)
    row.write("dst", value)


def _scalar_tensor_tensor(row: Row) -> None:
    attrs = row.attrs
    row.write("dst", applied(row.algebra, attrs.op1, _first_operator(row), _like_dst(row, "operand1"), attrs.reverse1))


def _reciprocal(row: Row) -> None:
    row.write("dst", row.algebra.reciprocal(_like_dst(row, "data")))


def _activation(row: Row) -> None:
    attrs, a = row.attrs, row.algebra
    value = _like_dst(row, "data")
    if attrs.scale != 1:
        value = a.multiply(value, _column(row, "scale", attrs.scale))
    if attrs.bias != 0:
        value = a.add(value, _column(row, "bias", attrs.bias))
    value = FUNCTIONS[attrs.op](a, value)
    if row.has("accumulators"):
        _accumulate(row, "add", value, attrs.reduce_cmd)
    row.write("dst", value)
    if row.has("reduce_res"):
        row.write("reduce_res", row.read("accumulators"))


def _copy_predicated(row: Row) -> None:
    attrs, before = row.attrs, row.read("dst")
    chosen = (_like_dst(row, "predicate").p != 0) != attrs.reverse
    value = _like_dst(row, "src") if attrs.value is None else row.algebra.number(float(attrs.value))
    row.write("dst", row.algebra.where(chosen, value, before))


# --- along the free dimensions --------------------------------------------------------------------


def _accumulate(row: Row, op: str, values: Value, command: reduce_cmd, start: Value | None = None) -> None:
    """The engine's registers run over `values`, as `isa.vector_engine.accumulate` says."""
    if command is reduce_cmd.idle:
        return
    a = row.algebra
    found = None if command is reduce_cmd.reset else reduced(a, op, _by_partition(values)).reshape(-1, 1)
    if command is reduce_cmd.reduce:
        before: Value | None = row.read("accumulators")
    else:
        identity = ops.ALU[op].identity
        assert identity is not None
        before = start if command is reduce_cmd.load_reduce else a.number(identity)
    assert before is not None
    row.write("accumulators", before if found is None else applied(a, op, before, found))


def _tensor_reduce(row: Row) -> None:
    attrs, a, data = row.attrs, row.algebra, row.read("data")
    kept = data.shape[: len(data.shape) - len(attrs.axes)]
    value = reduced(a, attrs.op, data.reshape(*kept, -1))
    row.write("dst", (a.negative(value) if attrs.negate else value).reshape(*row.shape("dst")))


def _tensor_scalar_reduce(row: Row) -> None:
    attrs, a = row.attrs, row.algebra
    start = None
    if attrs.reduce_cmd is reduce_cmd.load_reduce:
        start = a.number(attrs.reduce_init) if attrs.reduce_init is not None else row.read("reduce_init").reshape(-1, 1)
    value = _first_operator(row)
    _accumulate(row, attrs.reduce_op, value, attrs.reduce_cmd, start)
    row.write("dst", value)
    if row.has("reduce_res"):
        total = row.read("accumulators")
        row.write("reduce_res", a.negative(total) if attrs.negate else total)


def _chosen(row: Row, chosen: np.ndarray, value: Value, other: Value) -> None:
    """A selection, and its maximum in the engine's registers."""
    found = row.algebra.where(chosen, value, other)
    _accumulate(row, "maximum", found, row.attrs.reduce_cmd)
    row.write("dst", found)
    if row.has("reduce_res"):
        row.write("reduce_res", row.read("accumulators"))


def _range_select(row: Row) -> None:
    attrs, a, shape = row.attrs, row.algebra, row.shape("dst")
    columns = int(np.prod(shape[1:]))
    places = a.integers(np.arange(columns) + attrs.range_start)
    held = [
        applied(a, comparison, places, row.read(bound).reshape(-1, 1)).p != 0
        for comparison, bound in ((attrs.comp_op0, "bound0"), (attrs.comp_op1, "bound1"))
    ]
    _chosen(row, (held[0] & held[1]).reshape(shape), _like_dst(row, "on_true_tile"), a.number(FLOAT32_MIN))


def _select_reduce(row: Row) -> None:
    chosen = (_like_dst(row, "predicate").p != 0) != row.attrs.reverse
    _chosen(row, chosen, _like_dst(row, "on_true"), _column(row, "on_false", row.attrs.on_false))


def _scan(row: Row) -> None:
    """dst[:, i] = (data0[:, i] <op0> dst[:, i - 1]) <op1> data1[:, i]"""
    attrs, a = row.attrs, row.algebra
    state = a.number(attrs.initial) if attrs.initial is not None else row.read("initial")
    first, second = (_by_partition(_like_dst(row, role)) for role in ("data0", "data1"))
    if (attrs.op0, attrs.op1) == ("multiply", "add"):
        row.write("dst", a.recurrence(state, first, second).reshape(*row.shape("dst")))
        return
    lines = []
    for i in range(first.shape[1]):
        step = applied(a, attrs.op0, first.moved(lambda lane: lane[:, i : i + 1]), state, attrs.reverse0)  # noqa: B023
        state = applied(a, attrs.op1, step, second.moved(lambda lane: lane[:, i : i + 1]), attrs.reverse1)  # noqa: B023
        lines.append(state)
    row.write("dst", _side_by_side(lines).reshape(*row.shape("dst")))


def _side_by_side(columns: list[Value]) -> Value:
    q = [column.q for column in columns if column.q is not None]
    return Value(
        np.concatenate([column.p for column in columns], axis=1),
        np.concatenate(q, axis=1) if len(q) == len(columns) else None,
    )


def _cumulative(row: Row) -> None:
    attrs, a = row.attrs, row.algebra
    operand = _scalar(row, attrs.op0, "imm0", attrs.imm0)
    values = _by_partition(applied(a, attrs.op0, _like_dst(row, "src"), operand, False, attrs.imm0))
    if attrs.reduce_cmd is reduce_cmd.reduce:
        state = row.read("accumulators")
    elif attrs.reduce_cmd is reduce_cmd.load_reduce:
        state = a.number(attrs.imm1) if attrs.imm1 is not None else row.read("imm1").reshape(-1, 1)
    else:
        identity = ops.ALU[attrs.op1].identity
        assert identity is not None
        state = a.number(identity)
    lines = []
    for i in range(values.shape[1]):
        state = applied(a, attrs.op1, values.moved(lambda lane: lane[:, i : i + 1]), state)  # noqa: B023
        lines.append(state)
    row.write("accumulators", lines[-1])
    row.write("dst", _side_by_side(lines).reshape(*row.shape("dst")))


def _bn_stats(row: Row) -> None:
    a, rows = row.algebra, _by_partition(row.read("data"))
    columns = []
    for half in (rows.moved(lambda lane: lane[:, 0::2]), rows.moved(lambda lane: lane[:, 1::2])):
        count = half.shape[1]
        mean = a.multiply(a.total(half, -1).reshape(-1, 1), a.number(1 / count if count else 0))
        spread = a.total(a.square(a.subtract(half, mean)), -1).reshape(-1, 1)
        columns += [a.integers(np.full(mean.shape, count)), mean, spread]
    row.write("dst", _side_by_side(columns).reshape(*row.shape("dst")))


def _bn_aggr(row: Row) -> None:
    a, data = row.algebra, row.read("data")
    triples = data.reshape(data.shape[0], -1, 3)
    count, mean, scaled = (triples.moved(lambda lane: lane[..., k]) for k in range(3))  # noqa: B023
    share = a.reciprocal(a.total(count, -1).reshape(-1, 1))
    overall = a.multiply(a.total(a.multiply(count, mean), -1).reshape(-1, 1), share)
    away = a.multiply(count, a.square(a.subtract(mean, overall)))
    spread = a.add(a.total(scaled, -1).reshape(-1, 1), a.total(away, -1).reshape(-1, 1))
    row.write("dst", _side_by_side([overall, a.multiply(spread, share)]).reshape(*row.shape("dst")))


# --- across the partitions ------------------------------------------------------------------------


def _partition_reduce(row: Row) -> None:
    a, data = row.algebra, row.read("data")
    across = data.moved(lambda lane: np.moveaxis(lane, 0, -1))
    value = reduced(a, "add" if row.attrs.op == "average" else row.attrs.op, across)
    if row.attrs.op == "average":
        value = a.multiply(value, a.number(1 / data.shape[0]))
    row.write("dst", value.reshape(*row.shape("dst")))


def _matmul(row: Row) -> None:
    attrs, a, written = row.attrs, row.algebra, row.flags()
    assert written is not None  # the rules of nc_matmul want PSUM
    if attrs.is_transpose:
        _by_identity(row)
        row.write("dst", _turned(row, "stationary"))
        written[...] = True
        return
    stationary, moving = row.read("stationary"), row.read("moving")
    terms = stationary.shape[0] * (2 if attrs.perf_mode is matmul_perf_mode.double_row else 1)
    left, right = stationary.reshape(terms, -1).moved(np.transpose), moving.reshape(terms, -1)
    product = a.matmul(left, right).reshape(*row.shape("dst"))
    adds = attrs.accumulate
    if adds is None and (written.all() or not written.any()):
        adds = bool(written.all())
    if adds is False:
        row.write("dst", product)
    else:
        before = row.read("dst")
        total = a.add(before, product)
        row.write("dst", total if adds else a.where(written, total, product))
    if not adds:
        written[...] = True


def _by_identity(row: Row) -> None:
    moving = _by_partition(row.read("moving")).p
    if moving.shape[0] != moving.shape[1] or not (moving == np.eye(len(moving), dtype=moving.dtype)).all():
        raise NotProvable(
            f"line {row.algebra.line}: nc_matmul with is_transpose has a moving matrix that may be no identity"
        )


RULES: dict[str, Rule] = {
    "activation": _activation,
    "affine_select": _affine_select,
    "bn_aggr": _bn_aggr,
    "bn_stats": _bn_stats,
    "dma_compute": _dma_compute,
    "dma_copy": _copy,
    "dma_transpose": _dma_transpose,
    "iota": _iota,
    "local_gather": _by_its_own("local_gather", "src_buffer", "index"),
    "memset": _memset,
    "nc_matmul": _matmul,
    "nc_n_gather": _by_its_own("nc_n_gather", "data", "indices"),
    "nc_stream_shuffle": _by_its_own("nc_stream_shuffle", "src"),
    "nc_transpose": _nc_transpose,
    "range_select": _range_select,
    "reciprocal": _reciprocal,
    "register_copy": _copy,
    "register_load": _copy,
    "register_set": _register_set,
    "register_store": _copy,
    "scalar_arithmetic": _scalar_arithmetic,
    "scalar_load": _copy,
    "scalar_store": _scalar_store,
    "scalar_tensor_tensor": _scalar_tensor_tensor,
    "select_reduce": _select_reduce,
    "tensor_copy": _copy,
    "tensor_copy_predicated": _copy_predicated,
    "tensor_partition_reduce": _partition_reduce,
    "tensor_reduce": _tensor_reduce,
    "tensor_scalar": _tensor_scalar,
    "tensor_scalar_cumulative": _cumulative,
    "tensor_scalar_reduce": _tensor_scalar_reduce,
    "tensor_tensor": _tensor_tensor,
    "tensor_tensor_scan": _scan,
}
