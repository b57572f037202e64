"""TensorE and data movement across partitions against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from on_device import FLOATS, Tile, check, free_shapes, tiles

import nki_sim
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl

FEW = settings(max_examples=40, deadline=None)


@FEW
@given(
    data=st.data(),
    k=st.integers(1, 128),
    m=st.integers(1, 128),
    n=st.integers(1, 96),
    kinds=st.sampled_from([("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float16")]),
)
def test_matmul_contracts_partitions(data: st.DataObject, k: int, m: int, n: int, kinds: tuple[str, str]) -> None:
    stationary = data.draw(tiles(k, (m,), [kinds[0]], psum=False))
    moving = data.draw(tiles(k, (n,), [kinds[1]], psum=False))
    dst = Tile(m, (n,), "float32", psum=True)
    want = stationary.values64().T @ moving.values64()
    check(
        lambda d, a, b: nisa.nc_matmul(d, a, b, accumulate=False), [stationary, moving], [dst], [want], tolerance=1e-4
    )


@FEW
@given(
    data=st.data(), k=st.integers(1, 64), m=st.integers(1, 32), shape=st.tuples(st.integers(1, 6), st.integers(1, 6))
)
def test_matmul_flattens_free_dimensions(data: st.DataObject, k: int, m: int, shape: tuple[int, int]) -> None:
    stationary = data.draw(tiles(k, (m,), ["float32"], psum=False))
    moving = data.draw(tiles(k, shape, ["float32"], psum=False))
    dst = Tile(m, shape, "float32", psum=True)
    want = (stationary.values64().T @ moving.values64().reshape(k, -1)).reshape(dst.shape)
    check(
        lambda d, a, b: nisa.nc_matmul(d, a, b, accumulate=False), [stationary, moving], [dst], [want], tolerance=1e-4
    )


def _accumulating(steps: int, flag, body=None):
    """x.T @ x summed `steps` times into one PSUM tile with `accumulate=flag(step)`."""

    def kernel(x):
        tile = nl.load(x)
        total = nl.ndarray((x.shape[1], x.shape[1]), nl.float32, buffer=nl.psum)
        for step in range(steps):
            nisa.nc_matmul(dst=total, stationary=tile, moving=tile, accumulate=flag(step))
        out = nl.ndarray(total.shape, nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(total))
        return out

    return kernel


@pytest.mark.parametrize(
    ("flag", "times"),
    [(lambda step: None, 3), (lambda step: step > 0, 3), (lambda step: False, 1), (lambda step: step == 1, 1)],
    ids=["left out", "first overwrites", "always overwrites", "the last one overwrites"],
)
def test_accumulate(flag, times: int) -> None:
    x = np.random.default_rng(0).standard_normal((64, 24)).astype(np.float32)
    result = nki_sim.simulate(_accumulating(3, flag))(x)
    np.testing.assert_allclose(result, times * (x.T @ x), rtol=1e-5, atol=1e-4)


def test_accumulate_onto_nothing_is_poisoned() -> None:
    """Given PSUM that no matmul has written, when a matmul adds to it, then the result is NaN."""
    x = np.ones((32, 8), np.float32)
    assert np.isnan(nki_sim.simulate(_accumulating(1, lambda step: True))(x)).all()


def test_accumulation_on_overlapping_regions() -> None:
    """Given windows that overlap, as in a convolution, then each element sums the matmuls that wrote it."""
    x = np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)

    def kernel(x):
        tile = nl.load(x)
        total = nl.ndarray((8, 12), nl.float32, buffer=nl.psum)
        for shift in range(5):
            nisa.nc_matmul(dst=total[:, shift : shift + 8], stationary=tile, moving=tile)
        out = nl.ndarray((8, 12), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(total))
        return out

    want = np.zeros((8, 12), np.float32)
    for shift in range(5):
        want[:, shift : shift + 8] += x.T @ x
    np.testing.assert_allclose(nki_sim.simulate(kernel)(x), want, rtol=1e-5, atol=1e-4)


def test_double_row_splits_the_contraction() -> None:
    random = np.random.default_rng(2)
    a, b = (random.uniform(-2, 2, (128, 2, n)).astype(ml_dtypes.float8_e4m3) for n in (16, 40))

    def kernel(a, b):
        total = nl.ndarray((16, 40), nl.float32, buffer=nl.psum)
        mode = nisa.matmul_perf_mode.double_row
        nisa.nc_matmul(dst=total, stationary=nl.load(a), moving=nl.load(b), perf_mode=mode)
        out = nl.ndarray((16, 40), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(total))
        return out

    want = np.einsum("kjm,kjn->mn", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(nki_sim.simulate(kernel)(a, b), want, rtol=1e-5, atol=1e-4)


@FEW
@given(data=st.data(), p=st.integers(1, 128), f=st.integers(1, 128), dtype=st.sampled_from([*FLOATS, "int32"]))
def test_transpose_moves_bits(data: st.DataObject, p: int, f: int, dtype: str) -> None:
    src = data.draw(tiles(p, (f,), [dtype], psum=False))
    dst = Tile(f, (p,), dtype, psum=True)
    if dtype != "int32":
        check(lambda d, a: nisa.nc_transpose(dst=d, data=a), [src], [dst], [src.values().T], exact=True)
    if p <= 32 and f <= 32:
        here = Tile(f, (p,), dtype)
        check(
            lambda d, a: nisa.nc_transpose(d, a, engine=nisa.engine.vector), [src], [here], [src.values().T], exact=True
        )


def test_transposes_keep_nan_and_infinity() -> None:
    values = np.array([[np.nan, 1.0], [np.inf, -2.0]], np.float32)

    def kernel(x):
        tile = nl.load(x)
        identity = nl.shared_identity_matrix(2, nl.float32)
        results = []
        for way in ("transpose", "matmul"):
            turned = nl.ndarray((2, 2), nl.float32, buffer=nl.psum)
            if way == "transpose":
                nisa.nc_transpose(dst=turned, data=tile, engine=nisa.engine.tensor)
            else:
                nisa.nc_matmul(dst=turned, stationary=tile, moving=identity, is_transpose=True)
            out = nl.ndarray((2, 2), nl.float32, buffer=nl.shared_hbm)
            nl.store(out, nl.copy(turned))
            results.append(out)
        return tuple(results)

    for result in nki_sim.simulate(kernel)(values):
        np.testing.assert_array_equal(result, values.T)


@FEW
@given(data=st.data(), rank=st.integers(2, 4), sizes=st.tuples(*[st.integers(1, 8)] * 4))
def test_dma_transpose_permutes_by_rank(data: st.DataObject, rank: int, sizes: tuple[int, ...]) -> None:
    axes = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[rank]
    src = data.draw(tiles(sizes[0], sizes[1:rank], ["bfloat16"], psum=False))
    want = src.values().transpose(axes)
    dst = Tile(want.shape[0], want.shape[1:], "bfloat16")
    check(lambda d, a: nisa.dma_transpose(dst=d, src=a), [src], [dst], [want], exact=True)


@FEW
@given(
    data=st.data(),
    quadrants=st.integers(1, 4),
    mask=st.lists(st.one_of(st.integers(0, 31), st.just(255)), min_size=32, max_size=32),
)
def test_stream_shuffle_within_quadrants(data: st.DataObject, quadrants: int, mask: list[int]) -> None:
    p = 32 * quadrants
    src, dst = data.draw(tiles(p, (5,), ["float32"])), data.draw(tiles(p, (5,), ["float32"]))
    want = dst.values().copy()
    for row in range(p):
        if mask[row % 32] != 255:
            want[row] = src.values()[row // 32 * 32 + mask[row % 32]]
    check(lambda d, a: nisa.nc_stream_shuffle(dst=d, src=a, shuffle_mask=mask), [src], [dst], [want], exact=True)


@FEW
@given(data=st.data(), p=st.integers(1, 128), free=free_shapes(), count=st.integers(1, 4))
def test_dma_compute_adds_in_float32(data: st.DataObject, p: int, free: tuple[int, ...], count: int) -> None:
    sources = [data.draw(tiles(p, free, psum=False)) for _ in range(count)]
    dst = data.draw(tiles(p, free, psum=False))
    want = sum(tile.values64() for tile in sources)

    def body(d, *s) -> None:
        nisa.dma_compute(d, srcs=list(s), reduce_op=nl.add, scales=[1.0] * count)

    check(body, sources, [dst], [np.asarray(want)], tolerance=None if dst.dtype == "float32" else 2**-6)


def _gathering(mode):
    def kernel(table, indices):
        rows, width = indices.shape[0], table.shape[1]
        where = nl.load(indices)
        tile = nl.ndarray((rows, width), table.dtype)
        nisa.memset(dst=tile, value=-1.0)
        picked = table.ap(pattern=[[width, rows], [1, width]], vector_offset=where, indirect_dim=0)
        nisa.dma_copy(dst=tile, src=picked, oob_mode=mode)
        out = nl.ndarray(tile.shape, table.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    return kernel


def test_skipped_rows_keep_the_destination() -> None:
    table = np.arange(50, dtype=np.float32).reshape(10, 5)
    indices = np.array([[3], [10], [-1], [0]], np.int32)
    result = nki_sim.simulate(_gathering(nisa.oob_mode.skip))(table, indices)
    np.testing.assert_array_equal(result[[0, 3]], table[[3, 0]])
    np.testing.assert_array_equal(result[[1, 2]], np.full((2, 5), -1.0))


@pytest.mark.parametrize("skip", [False, True])
def test_dma_scatters_rows(skip: bool) -> None:
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    indices = np.array([[6], [0], [99 if skip else 2]], np.int32)

    def kernel(values, indices):
        where, tile = nl.load(indices), nl.load(values)
        out = nl.zeros((8, 5), nl.float32, buffer=nl.shared_hbm)
        target = out.ap(pattern=[[5, 3], [1, 5]], vector_offset=where, indirect_dim=0)
        nisa.dma_copy(dst=target, src=tile, oob_mode=nisa.oob_mode.skip if skip else nisa.oob_mode.error)
        return out

    want = np.zeros((8, 5), np.float32)
    want[6], want[0] = values[0], values[1]
    if not skip:
        want[2] = values[2]
    np.testing.assert_array_equal(nki_sim.simulate(kernel)(values, indices), want)


def test_scatter_add_reads_modifies_and_writes() -> None:
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    indices = np.array([[6], [0], [2]], np.int32)

    def kernel(values, indices):
        where, tile = nl.load(indices), nl.load(values)
        out = nl.ones((8, 5), nl.float32, buffer=nl.shared_hbm)
        target = out.ap(pattern=[[5, 3], [1, 5]], vector_offset=where, indirect_dim=0)
        nisa.dma_compute(dst=target, srcs=[target, tile], reduce_op=nl.add)
        return out

    want = np.ones((8, 5), np.float32)
    want[[6, 0, 2]] += values
    np.testing.assert_array_equal(nki_sim.simulate(kernel)(values, indices), want)


def test_indirect_transpose_reads_indices_down_the_columns() -> None:
    table = np.random.default_rng(4).standard_normal((40, 16)).astype(ml_dtypes.bfloat16)
    indices = np.random.default_rng(5).integers(0, 40, (128, 2)).astype(np.uint32)

    def kernel(table, indices):
        where = nl.load(indices)
        tile = nl.ndarray((16, 256), table.dtype)
        picked = table.ap(pattern=[[16, 256], [1, 16]], vector_offset=where, indirect_dim=0)
        nisa.dma_transpose(dst=tile, src=picked, axes=(1, 0))
        out = nl.ndarray(tile.shape, table.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    np.testing.assert_array_equal(
        nki_sim.simulate(kernel)(table, indices).astype(np.float32), table[indices.T.reshape(-1)].T.astype(np.float32)
    )


@FEW
@given(data=st.data(), p=st.integers(1, 128), n=st.integers(1, 30), count=st.integers(1, 20))
def test_n_gather_picks_within_partitions(data: st.DataObject, p: int, n: int, count: int) -> None:
    src = data.draw(tiles(p, (n,), ["float32", "bfloat16"], psum=False))
    where = Tile(p, (count,), "uint32", seed=data.draw(st.integers(0, 99)), low=0, high=n - 1)
    dst = data.draw(tiles(p, (count,), [src.dtype], psum=False))
    want = np.take_along_axis(src.values(), where.values().astype(int), axis=1)
    check(lambda d, a, i: nisa.nc_n_gather(dst=d, data=a, indices=i), [src, where], [dst], [want], exact=True)


@pytest.mark.parametrize(("per_index", "valid"), [(1, 64), (4, 64), (2, 50)])
def test_local_gather_works_in_groups_of_16(per_index: int, valid: int) -> None:
    src = Tile(32, (40, 4), "float32", seed=1)
    index = Tile(32, (4,), "uint16", seed=2, low=0, high=150)
    dst = Tile(32, (valid, per_index), "float32")
    flat, want = src.values().reshape(32, -1), np.empty(dst.shape, np.float32)
    for core in range(2):
        rows = slice(16 * core, 16 * core + 16)
        for i, start in enumerate(index.values()[rows].flatten(order="F")[:valid]):
            want[rows, i, :] = flat[rows, start : start + per_index]

    def body(d, a, i) -> None:
        nisa.local_gather(d, src_buffer=a, index=i, num_elem_per_idx=per_index, num_valid_indices=valid)

    check(body, [src, index], [dst], [want], exact=True)


def test_skipped_columns_of_an_indirect_transpose() -> None:
    table = np.arange(40, dtype=np.float32).reshape(10, 4).astype(ml_dtypes.bfloat16)
    indices = np.array([[3], [77], [1]], np.uint32)

    def kernel(table, indices):
        tile = nl.full((4, 3), -1.0, table.dtype)
        picked = table.ap(pattern=[[4, 3], [1, 4]], vector_offset=nl.load(indices), indirect_dim=0)
        nisa.dma_transpose(dst=tile, src=picked, oob_mode=nisa.oob_mode.skip)
        out = nl.ndarray((4, 3), table.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    want = np.stack([table[3], np.full(4, -1.0), table[1]], axis=1)
    np.testing.assert_array_equal(nki_sim.simulate(kernel)(table, indices).astype(np.float32), want.astype(np.float32))
