"""Reductions, accumulators, scans, statistics, searches and selections against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from on_device import Tile, along, check, column, free_shapes, tiles

import nki_sim
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl

FEW = settings(max_examples=40, deadline=None)
partitions = st.integers(1, 128)
REDUCE = {"add": np.sum, "maximum": np.max, "minimum": np.min, "multiply": np.prod}
COMMAND = nisa.reduce_cmd


@FEW
@given(data=st.data(), p=partitions, free=free_shapes(ndim=4), op=st.sampled_from(sorted(REDUCE)), negate=st.booleans())
def test_tensor_reduce_over_trailing_dimensions(data, p, free, op, negate) -> None:
    src = data.draw(tiles(p, free, low=0.5, high=1.5))
    count = data.draw(st.integers(1, len(free)))
    axes = tuple(range(len(free) + 1 - count, len(free) + 1))
    want = REDUCE[op](src.values64(), axis=axes)
    kept = free[: len(free) - count] or (1,)
    dst = data.draw(tiles(p, kept, ["float32", "bfloat16"], views=("whole", "offset")))
    check(
        lambda d, a: nisa.tensor_reduce(d, op=getattr(nl, op), data=a, axis=axes, negate=negate),
        [src],
        [dst],
        [(-want if negate else want).reshape(dst.shape)],
        tolerance=1e-5 if dst.dtype == "float32" else 2**-6,
    )


@FEW
@given(data=st.data(), p=partitions, free=free_shapes(), op=st.sampled_from(sorted(REDUCE)), vector=st.booleans())
def test_tensor_scalar_reduce(data: st.DataObject, p: int, free: tuple[int, ...], op: str, vector: bool) -> None:
    src, dst = data.draw(tiles(p, free, low=0.8, high=1.2)), data.draw(tiles(p, free))
    scale, result = column(p, 2, 0.9, 1.1), Tile(p, (1,), "float32")
    want = src.values64() * (along(scale.values(), len(src.shape)) if vector else 1.125)
    total = REDUCE[op](want, axis=tuple(range(1, want.ndim))).reshape(p, 1)
    check(
        lambda d, r, a, s: nisa.tensor_scalar_reduce(
            d, data=a, op0=nl.multiply, operand0=s if vector else 1.125, reduce_op=getattr(nl, op), reduce_res=r
        ),
        [src, scale],
        [dst, result],
        [want, total],
        tolerance=2e-5 if dst.dtype == "float32" else 2**-6,
    )


def test_accumulators_run_over_several_instructions() -> None:
    """Given sums that continue, then the result holds all tiles; lanes follow the partitions."""
    x = np.random.default_rng(0).standard_normal((64, 3, 10)).astype(np.float32)

    def kernel(x):
        tile = nl.load(x)
        scratch = nl.ndarray((64, 10), nl.float32)
        results = [nl.ndarray((64, 1), nl.float32) for _ in range(3)]
        for i in range(3):
            last = {"reduce_res": results[0]} if i == 2 else {}
            nisa.activation(
                dst=scratch,
                op=nl.square,
                data=tile[:, i, :],
                reduce_op=nl.add,
                reduce_cmd=COMMAND.reset_reduce if i == 0 else COMMAND.reduce,
                **last,
            )
            command = COMMAND.load_reduce if i == 0 else COMMAND.reduce
            start = {"reduce_init": 5.0} if i == 0 else {}
            nisa.tensor_scalar_reduce(
                dst=scratch,
                data=tile[:, i, :],
                op0=nl.add,
                operand0=0.0,
                reduce_op=nl.maximum,
                reduce_cmd=command,
                reduce_res=results[1] if i == 2 else None,
                reduce_res_negate=True,
                **start,
            )
        nisa.activation_reduce(dst=scratch, op=nl.copy, data=tile[:, 0, :], reduce_op=nl.add, reduce_res=results[2])
        outs = []
        for result in results:
            out = nl.ndarray((64, 1), nl.float32, buffer=nl.shared_hbm)
            nl.store(out, result)
            outs.append(out)
        return tuple(outs)

    squares, highest, first = nki_sim.simulate(kernel)(x)
    np.testing.assert_allclose(squares[:, 0], np.square(x).sum((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(highest[:, 0], -np.maximum(x.max((1, 2)), 5.0))
    np.testing.assert_allclose(first[:, 0], x[:, 0].sum(1), rtol=1e-4, atol=1e-5)


def test_the_sum_may_overwrite_the_data() -> None:
    src, dst = Tile(8, (6,), "float32", seed=1), Tile(8, (6,), "float32")
    want = np.exp(src.values64())
    want[:, 0] = np.exp(src.values64()).sum(1)

    def body(d, a) -> None:
        nisa.activation(d, nl.exp, a, reduce_op=nl.add, reduce_res=d[:, 0:1], reduce_cmd=COMMAND.reset_reduce)

    check(body, [src], [dst], [want], tolerance=1e-5)


def test_a_sum_whose_elements_are_thrown_away() -> None:
    """Given a destination that repeats one element, then the row sum still sees every value."""
    x = np.random.default_rng(3).standard_normal((16, 40)).astype(np.float32)

    def kernel(x):
        tile, unwanted, total = nl.load(x), nl.ndarray((16, 1), nl.float32), nl.ndarray((16, 1), nl.float32)
        nowhere = unwanted.ap(pattern=[[1, 16], [0, 40]])
        nisa.activation_reduce(
            dst=nowhere, op=nl.square, data=tile, scale=2.0, bias=1.0, reduce_op=nl.add, reduce_res=total
        )
        nisa.tensor_scalar(dst=nowhere, data=tile, op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=3.0)
        out = nl.ndarray((16, 2), nl.float32, buffer=nl.shared_hbm)
        nl.store(out[:, 0:1], total)
        nl.store(out[:, 1:2], unwanted)
        return out

    result = nki_sim.simulate(kernel)(x)
    np.testing.assert_allclose(result[:, 0], np.square(2 * x + 1).sum(1), rtol=1e-5)
    np.testing.assert_allclose(result[:, 1], (x[:, -1] + 1) * 3, rtol=1e-6)


SCAN = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum, "subtract": np.subtract}


@FEW
@given(
    data=st.data(),
    p=partitions,
    free=free_shapes(24),
    ops=st.tuples(st.sampled_from(sorted(SCAN)), st.sampled_from(sorted(SCAN))),
    reverses=st.tuples(st.booleans(), st.booleans()),
    start=st.sampled_from([0.0, 0.5, "tile"]),
)
def test_scan_feeds_each_element_the_one_before(data, p, free, ops, reverses, start) -> None:
    first = data.draw(tiles(p, free, low=-0.9, high=0.9))
    second = data.draw(tiles(p, free, psum=False if first.psum else None, low=-0.9, high=0.9))
    dst = data.draw(tiles(p, free, ["float32"]))
    initial = column(p, 8, -1, 1)
    a, b = first.values64().reshape(p, -1), second.values64().reshape(p, -1)
    state = initial.values64()[:, 0] if start == "tile" else np.full(p, float(start))
    want = np.empty_like(a)
    for i in range(a.shape[1]):
        step = SCAN[ops[0]](*((state, a[:, i]) if reverses[0] else (a[:, i], state)))
        state = SCAN[ops[1]](*((b[:, i], step) if reverses[1] else (step, b[:, i])))
        want[:, i] = state

    def body(d, x, y, s) -> None:
        nisa.tensor_tensor_scan(
            d,
            data0=x,
            data1=y,
            initial=s if start == "tile" else start,
            op0=getattr(nl, ops[0]),
            op1=getattr(nl, ops[1]),
            reverse0=reverses[0],
            reverse1=reverses[1],
        )

    check(body, [first, second, initial], [dst], [want.reshape(dst.shape)], tolerance=1e-5)


@pytest.mark.parametrize("rows", (5, 1))
def test_a_scan_over_ones_is_a_running_sum(rows: int) -> None:
    src, dst = Tile(rows, (300,), "float32", seed=7), Tile(rows, (300,), "float32")

    def body(d, a):
        one = nl.ones((rows, 300), nl.float32)
        nisa.tensor_tensor_scan(dst=d, data0=one, data1=a, initial=2.0, op0=nl.multiply, op1=nl.add)

    check(body, [src], [dst], [2.0 + np.cumsum(src.values64(), axis=1)], tolerance=1e-4)


@FEW
@given(data=st.data(), p=partitions, free=free_shapes(20), op=st.sampled_from(sorted(SCAN)), loaded=st.booleans())
def test_cumulative_reduction(data: st.DataObject, p: int, free: tuple[int, ...], op: str, loaded: bool) -> None:
    src, dst = data.draw(tiles(p, free, low=0.5, high=1.5)), data.draw(tiles(p, free, ["float32"]))
    initial = column(p, 3, 0.5, 1.5)
    values = src.values64().reshape(p, -1) * 0.5
    identity = {"add": 0, "subtract": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}[op]
    state = initial.values64()[:, 0] if loaded else np.full(p, float(identity))
    want = np.empty_like(values)
    for i in range(values.shape[1]):
        state = SCAN[op](values[:, i], state)
        want[:, i] = state
    more = {"reduce_cmd": COMMAND.load_reduce} if loaded else {}
    check(
        lambda d, a, s: nisa.tensor_scalar_cumulative(
            d, a, op0=nl.multiply, op1=getattr(nl, op), imm0=0.5, imm1=s if loaded else None, **more
        ),
        [src, initial],
        [dst],
        [want.reshape(dst.shape)],
        tolerance=1e-5,
    )


@FEW
@given(data=st.data(), p=partitions, chunks=st.lists(st.integers(2, 60), min_size=1, max_size=4))
def test_bn_stats_and_aggr_give_mean_and_variance(data: st.DataObject, p: int, chunks: list[int]) -> None:
    src = data.draw(tiles(p, (sum(chunks),), psum=False))
    dst = Tile(p, (2,), "float32")

    def body(d, a):
        stats = nl.ndarray((p, len(chunks), 6), nl.float32)
        at = 0
        for i, width in enumerate(chunks):
            nisa.bn_stats(dst=stats[:, i, :], data=a[:, at : at + width])
            at += width
        nisa.bn_aggr(dst=d, data=stats)

    x = src.values64()
    check(body, [src], [dst], [np.stack([x.mean(1), x.var(1)], axis=1)], tolerance=1e-5)


def test_bn_stats_separates_even_and_odd_elements() -> None:
    src, dst = Tile(3, (7,), "float32", seed=1), Tile(3, (6,), "float32")
    x = src.values64()
    want = []
    for half in (x[:, 0::2], x[:, 1::2]):
        want += [np.full(3, half.shape[1]), half.mean(1), half.var(1) * half.shape[1]]
    check(lambda d, a: nisa.bn_stats(dst=d, data=a), [src], [dst], [np.stack(want, axis=1)], tolerance=1e-5)


@FEW
@given(data=st.data(), p=partitions, n=st.integers(8, 60))
def test_max8_sorts_the_largest(data: st.DataObject, p: int, n: int) -> None:
    src, dst = data.draw(tiles(p, (n,))), Tile(p, (8,), "float32")
    want = np.sort(src.values64(), axis=1)[:, ::-1][:, :8]
    check(lambda d, a: nisa.max8(dst=d, src=a), [src], [dst], [want])


def _occurrences(row: np.ndarray, vals: np.ndarray, order: range) -> list[int]:
    """Where each value is found when equal values take successive matches, in plain Python."""
    taken: set[int] = set()
    where = [-1] * 8
    for i in order:
        for at, value in enumerate(row):
            if value == vals[i] and at not in taken:
                taken.add(at)
                where[i] = at
                break
    return where


@FEW
@given(data=st.data(), p=st.integers(1, 16), n=st.integers(8, 30), index=st.sampled_from(["uint16", "uint32"]))
def test_find_index8_and_match_replace8(data: st.DataObject, p: int, n: int, index: str) -> None:
    seeds = st.integers(0, 2**31)
    src = Tile(p, (n,), "int8", seed=data.draw(seeds), low=0, high=6)
    vals = Tile(p, (8,), "int8", seed=data.draw(seeds), low=0, high=8)
    mark = np.iinfo(index).max
    rows, wanted = src.values64(), vals.values64()
    up = np.array([_occurrences(r, v, range(8)) for r, v in zip(rows, wanted)])
    down = np.array([_occurrences(r, v, range(7, -1, -1)) for r, v in zip(rows, wanted)])

    def body(d, a, v) -> None:
        nisa.nc_find_index8(d, data=a, vals=v)

    check(body, [src, vals], [Tile(p, (8,), index)], [np.where(up < 0, mark, up)], exact=True)
    replaced = rows.copy()
    for row, line in enumerate(down):
        replaced[row, line[line >= 0]] = -9.0
    check(
        lambda d, i, a, v: nisa.nc_match_replace8(d, data=a, vals=v, imm=-9.0, dst_idx=i),
        [src, vals],
        [Tile(p, (n,), "float32"), Tile(p, (8,), index)],
        [replaced, np.where(down < 0, mark, down)],
        exact=True,
    )


def test_nonzero_with_count_touches_every_sixteenth_partition() -> None:
    src = Tile(33, (8,), "int32", seed=3, low=0, high=1)
    dst = Tile(33, (9,), "int32", seed=4, low=0, high=99)
    want = dst.values().copy()
    for p in (0, 16, 32):
        found = np.flatnonzero(src.values()[p])
        want[p] = [*(found + 16), *[-1] * (8 - len(found)), len(found)]
    check(lambda d, a: nisa.nonzero_with_count(d, a, index_offset=16, padding_val=-1), [src], [dst], [want], exact=True)


def test_topk_reads_a_snake_of_sixteen_partitions() -> None:
    src = Tile(32, (3,), "bfloat16", seed=5)
    values, index = Tile(32, (8,), "bfloat16"), Tile(32, (8,), "uint32")
    n, best, where = 42, np.empty((32, 8)), np.empty((32, 8))
    for core in range(2):
        snake = src.values64()[16 * core : 16 * core + 16].flatten(order="F")[:n]
        order = sorted(range(n), key=lambda i: (-snake[i], i))[:8][::-1]
        best[16 * core : 16 * core + 16], where[16 * core : 16 * core + 16] = snake[order], order
    check(
        lambda v, i, a: nisa.topk(val_dst=v, idx_dst=i, src=a, n=n), [src], [values, index], [best, where], exact=True
    )


def test_sequence_bounds_mark_runs_and_padding() -> None:
    ids = np.array([[1, 1, 1, 4, 4, 0, 0, 7]], np.float32)

    def kernel(ids):
        bounds = nl.ndarray((1, 2, 8), nl.float32)
        nisa.sequence_bounds(dst=bounds, segment_ids=nl.load(ids))
        out = nl.ndarray((1, 2, 8), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, bounds)
        return out

    assert nki_sim.simulate(kernel)(ids).tolist() == [[[0, 0, 0, 3, 3, 8, 8, 7], [3, 3, 3, 5, 5, -1, -1, 8]]]


COMPARE = {
    "equal": np.equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
LOWEST = np.finfo(np.float32).min


@FEW
@given(
    data=st.data(),
    p=partitions,
    n=st.integers(1, 60),
    ops=st.tuples(st.sampled_from(sorted(COMPARE)), st.sampled_from(sorted(COMPARE))),
    start=st.integers(0, 50),
)
def test_range_select(data: st.DataObject, p: int, n: int, ops: tuple[str, str], start: int) -> None:
    src, dst = data.draw(tiles(p, (n,))), data.draw(tiles(p, (n,), ["float32"]))
    low, high, result = column(p, 1, 0, 60), column(p, 2, 20, 90), Tile(p, (1,), "float32")
    index = start + np.arange(n)
    chosen = COMPARE[ops[0]](index, low.values64()) & COMPARE[ops[1]](index, high.values64())
    want = np.where(chosen, src.values64(), LOWEST)

    def body(d, r, a, b0, b1) -> None:
        nisa.range_select(
            d,
            on_true_tile=a,
            comp_op0=getattr(nl, ops[0]),
            comp_op1=getattr(nl, ops[1]),
            bound0=b0,
            bound1=b1,
            reduce_res=r,
            range_start=start,
        )

    check(body, [src, low, high], [dst, result], [want, want.max(1, keepdims=True)])


@FEW
@given(data=st.data(), p=partitions, free=free_shapes(), reverse=st.booleans(), scalar=st.booleans())
def test_copy_predicated(data: st.DataObject, p: int, free: tuple[int, ...], reverse: bool, scalar: bool) -> None:
    dst = data.draw(tiles(p, free))
    src = data.draw(tiles(p, free, [dst.dtype], psum=False))
    predicate = data.draw(tiles(p, free, ["uint8", "uint32"], psum=False, low=0, high=1))
    chosen = (predicate.values() != 0) ^ reverse
    want = np.where(chosen, 2.5 if scalar else src.values64(), dst.values64())

    def body(d, a, q) -> None:
        nisa.tensor_copy_predicated(d, src=2.5 if scalar else a, predicate=q, reverse_pred=reverse)

    check(body, [src, predicate], [dst], [want], exact=True)


@FEW
@given(data=st.data(), p=partitions, free=free_shapes(), reverse=st.booleans(), vector=st.booleans())
def test_select_reduce(data: st.DataObject, p: int, free: tuple[int, ...], reverse: bool, vector: bool) -> None:
    on_true, dst = data.draw(tiles(p, free, psum=False)), data.draw(tiles(p, free, ["float32"]))
    predicate = data.draw(tiles(p, free, ["uint8", "int16"], psum=False, low=0, high=1))
    other, result = column(p, 2), Tile(p, (1,), "float32")
    chosen = (predicate.values() != 0) ^ reverse
    want = np.where(chosen, on_true.values64(), along(other.values(), len(dst.shape)) if vector else -1.5)
    check(
        lambda d, r, q, a, o: nisa.select_reduce(
            d,
            predicate=q,
            on_true=a,
            on_false=o if vector else -1.5,
            reduce_res=r,
            reduce_cmd=COMMAND.reset_reduce,
            reverse_pred=reverse,
        ),
        [predicate, on_true, other],
        [dst, result],
        [want, want.max(axis=tuple(range(1, want.ndim))).reshape(p, 1)],
    )


patterns = st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 6)), min_size=1, max_size=4)


def _affine(p: int, pattern: list[tuple[int, int]], offset: int, multiplier: int) -> np.ndarray:
    want = np.empty((p, *[count for _, count in pattern]), np.int64)
    for where in np.ndindex(want.shape):
        steps = sum(i * step for i, (step, _) in zip(where[1:], pattern))
        want[where] = offset + where[0] * multiplier + steps
    return want


@FEW
@given(
    data=st.data(),
    p=st.integers(1, 40),
    pattern=patterns,
    offset=st.integers(-1000, 1000),
    multiplier=st.integers(-9, 9),
    dtype=st.sampled_from(["int32", "float32", "bfloat16", "uint8"]),
)
def test_iota(data, p, pattern, offset, multiplier, dtype) -> None:
    want = _affine(p, pattern, offset, multiplier)
    dst = data.draw(tiles(p, want.shape[1:], [dtype], psum=False, views=("whole", "offset", "strided")))

    def body(d) -> None:
        nisa.iota(d, pattern=[list(q) for q in pattern], offset=offset, channel_multiplier=multiplier)

    check(body, [], [dst], [want.astype(np.float64)])


@FEW
@given(
    data=st.data(),
    p=st.integers(1, 40),
    pattern=patterns,
    offset=st.integers(-9, 9),
    multiplier=st.integers(-3, 3),
    op=st.sampled_from(["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]),
)
def test_affine_select(data, p, pattern, offset, multiplier, op) -> None:
    values = _affine(p, pattern, offset, multiplier)
    src = data.draw(tiles(p, values.shape[1:], psum=False))
    dst = data.draw(tiles(p, values.shape[1:], psum=False))
    want = np.where({**COMPARE, "not_equal": np.not_equal}[op](values, 0), src.values64(), -2.5)

    def body(d, a) -> None:
        nisa.affine_select(
            d,
            pattern=[list(q) for q in pattern],
            offset=offset,
            channel_multiplier=multiplier,
            on_true_tile=a,
            on_false_value=-2.5,
            cmp_op=getattr(nl, op),
        )

    check(body, [src], [dst], [want])


@FEW
@given(data=st.data(), p=partitions, free=free_shapes(), op=st.sampled_from(["add", "maximum", "average"]))
def test_partition_reduce(data: st.DataObject, p: int, free: tuple[int, ...], op: str) -> None:
    src = data.draw(tiles(p, free, psum=False))
    dst = data.draw(tiles(1, free, ["float32"], psum=False))
    want = {"add": np.sum, "maximum": np.max, "average": np.mean}[op](src.values64(), axis=0, keepdims=True)
    check(
        lambda d, a: nisa.tensor_partition_reduce(d, op=getattr(nl, op), data=a), [src], [dst], [want], tolerance=1e-4
    )


def _random(seed: int | None, engine: nisa.engine = nisa.engine.vector):
    def kernel():
        if seed is not None:
            tile = nl.full((1, 1), seed, nl.int32)
            nisa.set_rng_seed(tile)
        bits = nl.ndarray((128, 64), nl.uint32)
        nisa.rng(dst=bits, engine=engine)
        out = nl.ndarray((128, 64), nl.uint32, buffer=nl.shared_hbm)
        nl.store(out, bits)
        return out

    return nki_sim.simulate(kernel)()


def test_seeds_decide_the_numbers() -> None:
    first, again, other, unseeded = _random(7), _random(7), _random(8), _random(None)
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.99
    assert len(np.unique(first)) > 0.99 * first.size and len(np.unique(unseeded)) > 0.99 * unseeded.size
    ones = np.unpackbits(first.view(np.uint8)).mean()
    assert 0.49 < ones < 0.51


def test_dropout_zeroes_with_the_given_probability() -> None:
    x = np.ones((128, 200), np.float32)
    rates = np.linspace(0, 1, 128, dtype=np.float32).reshape(128, 1)

    def kernel(x, rates):
        tile = nl.load(x)
        kept = nl.ndarray(x.shape, x.dtype)
        nisa.dropout(dst=kept, data=tile, prob=nl.load(rates))
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, kept)
        return out

    kept = nki_sim.simulate(kernel)(x, rates)
    assert set(np.unique(kept)) == {0.0, 1.0}
    assert kept[0].all() and not kept[-1].any()
    assert np.abs((kept == 0).mean(1) - rates[:, 0]).max() < 0.2


def test_gpsimd_state_can_be_saved_and_restored() -> None:
    def kernel():
        state, first, second = nl.ndarray((128, 6), nl.uint32), *[nl.ndarray((128, 4), nl.uint32) for _ in range(2)]
        nisa.rand_get_state(dst=state)
        nisa.rng(dst=first, engine=nisa.engine.gpsimd)
        nisa.rand_set_state(src_seeds=state)
        nisa.rng(dst=second, engine=nisa.engine.gpsimd)
        outs = []
        for tile in (first, second):
            out = nl.ndarray((128, 4), nl.uint32, buffer=nl.shared_hbm)
            nl.store(out, tile)
            outs.append(out)
        return tuple(outs)

    first, second = nki_sim.simulate(kernel)()
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ["nc_matmul_mx", "quantize_mx", "activate2", "exponential", "rand2"])
def test_trn3_instructions_refuse_by_name(name: str) -> None:
    with pytest.raises(nki_sim.errors.NotSupported, match=f"{name}.*trn3"):
        nki_sim.simulate(lambda: getattr(nisa, name)())()


def test_versions_follow_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for target in ("trn1", "trn2", "trn3"):
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
        nki_sim.simulate(lambda: seen.append(nisa.get_nc_version()))()
    assert seen == [nisa.nc_version.gen2, nisa.nc_version.gen3, nisa.nc_version.gen4]
