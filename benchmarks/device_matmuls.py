"""The measured matmuls of `data/trn2_device`, written anew from their descriptions there.

Each function returns a traced `Program`. `k_size`, `m_size`, `n_size`: a_t is K x M, b is K x N, the product M x N.
Loads and stores are the plain `dma_copy`; what a loop fills is allocated inside it.
"""

from __future__ import annotations

from typing import Any

import nki_sim
from nki_sim import dtypes
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.program.program import Program
from nki_sim.tracing.session import TensorSpec

P, COLUMNS = 128, 512


def blocked(
    k_size: int,
    m_size: int,
    n_size: int,
    row_tiles: int,
    column_tiles: int,
    depth_tiles: int,
    dtype: str = "float32",
    accumulator: str = "float32",
) -> Program:
    """All three dimensions in blocks, of `row_tiles` x 128, `column_tiles` x 512 and `depth_tiles` x 128.

    Raises ValueError where a dimension is not a whole number of blocks, as the kernel's own assertion does.
    """
    wide_m, wide_n, deep = P * row_tiles, COLUMNS * column_tiles, P * depth_tiles
    if m_size % wide_m or n_size % wide_n or k_size % deep:
        raise ValueError(f"blocks of {wide_m} x {wide_n} x {deep} do not divide {m_size} x {n_size} x {k_size}")

    def kernel(a_t: Any, b: Any) -> Any:
        out = nl.ndarray((m_size, n_size), dtype=a_t.dtype, buffer=nl.shared_hbm)
        kept = getattr(nl, accumulator)
        for n0 in range(0, n_size, wide_n):
            sums = [nl.ndarray((P, column_tiles, COLUMNS), dtype=kept, buffer=nl.sbuf) for _ in range(m_size // P)]
            for total in sums:
                nisa.memset(dst=total, value=0.0)
            for k0 in range(0, k_size, deep):
                right = nl.ndarray((P, depth_tiles, wide_n), dtype=b.dtype, buffer=nl.sbuf)
                for k in range(depth_tiles):
                    nisa.dma_copy(dst=right[:, k, :], src=b[k0 + k * P : k0 + k * P + P, n0 : n0 + wide_n])
                for m0 in range(0, m_size, wide_m):
                    left = nl.ndarray((P, depth_tiles, wide_m), dtype=a_t.dtype, buffer=nl.sbuf)
                    for k in range(depth_tiles):
                        nisa.dma_copy(dst=left[:, k, :], src=a_t[k0 + k * P : k0 + k * P + P, m0 : m0 + wide_m])
                    for n in range(column_tiles):
                        columns = slice(n * COLUMNS, n * COLUMNS + COLUMNS)
                        for m in range(row_tiles):
                            part = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum)
                            for k in range(depth_tiles):
                                nisa.nc_matmul(
                                    dst=part, stationary=left[:, k, m * P : m * P + P], moving=right[:, k, columns]
                                )
                            total = sums[m0 // P + m][:, n, :]
                            nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
            for row, total in enumerate(sums):
                stored = total
                if accumulator != dtype:
                    stored = nl.ndarray((P, column_tiles, COLUMNS), dtype=a_t.dtype, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=stored, src=total)
                nisa.dma_copy(
                    dst=out[row * P : row * P + P, n0 : n0 + wide_n], src=stored.reshape((P, column_tiles * COLUMNS))
                )
        return out

    return _trace(kernel, k_size, m_size, n_size, dtype)


def tiled(k_size: int, m_size: int, n_size: int, dtype: str = "float32", *, row_resident: bool = False) -> Program:
    """One output tile after the other, both operands loaded for every product.

    `row_resident`: the stationary tiles of 128 output rows are loaded once, into one tensor.
    """

    def kernel(a_t: Any, b: Any) -> Any:
        out = nl.ndarray((m_size, n_size), dtype=a_t.dtype, buffer=nl.shared_hbm)
        deep = k_size // P
        for m in range(0, m_size, P):
            rows: Any = nl.ndarray((P, deep, P), dtype=a_t.dtype, buffer=nl.sbuf) if row_resident else None
            for k in range(deep if row_resident else 0):
                nisa.dma_copy(dst=rows[:, k, :], src=a_t[k * P : k * P + P, m : m + P])
            for n in range(0, n_size, COLUMNS):
                total = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum)
                for k in range(deep):
                    if rows is None:
                        weights = nl.ndarray((P, P), dtype=a_t.dtype, buffer=nl.sbuf)
                        nisa.dma_copy(dst=weights, src=a_t[k * P : k * P + P, m : m + P])
                    else:
                        weights = rows[:, k, :]
                    values = nl.ndarray((P, COLUMNS), dtype=b.dtype, buffer=nl.sbuf)
                    nisa.dma_copy(dst=values, src=b[k * P : k * P + P, n : n + COLUMNS])
                    nisa.nc_matmul(dst=total, stationary=weights, moving=values)
                _store(out[m : m + P, n : n + COLUMNS], total)
        return out

    return _trace(kernel, k_size, m_size, n_size, dtype)


def square_blocks(k_size: int, m_size: int, n_size: int, row_tiles: int, column_tiles: int) -> Program:
    """Blocks of `row_tiles` x `column_tiles` output tiles, each summed over all of K in PSUM."""

    def kernel(a_t: Any, b: Any) -> Any:
        out = nl.ndarray((m_size, n_size), dtype=a_t.dtype, buffer=nl.shared_hbm)
        deep = k_size // P

        def tiles(source: Any, first: int, count: int, width: int) -> list[Any]:
            loaded = []
            for at in range(first, first + count * width, width):
                tile = nl.ndarray((P, deep, width), dtype=source.dtype, buffer=nl.sbuf)
                for k in range(deep):
                    nisa.dma_copy(dst=tile[:, k, :], src=source[k * P : k * P + P, at : at + width])
                loaded.append(tile)
            return loaded

        for m0 in range(0, m_size, P * row_tiles):
            left = tiles(a_t, m0, row_tiles, P)
            for n0 in range(0, n_size, COLUMNS * column_tiles):
                right = tiles(b, n0, column_tiles, COLUMNS)
                for m, weights in enumerate(left):
                    for n, values in enumerate(right):
                        total = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum)
                        for k in range(deep):
                            nisa.nc_matmul(dst=total, stationary=weights[:, k, :], moving=values[:, k, :])
                        row, column = m0 + m * P, n0 + n * COLUMNS
                        _store(out[row : row + P, column : column + COLUMNS], total)
        return out

    return _trace(kernel, k_size, m_size, n_size, "float32")


def panel_resident(k_size: int, m_size: int, n_size: int, dtype: str = "bfloat16", *, shared: bool = False) -> Program:
    """512 columns of b stay while all rows of a_t pass by, each stationary tile loaded for its one product.

    `shared`: one stationary tile for all of K, filled anew for every product.
    """

    def kernel(a_t: Any, b: Any) -> Any:
        out = nl.ndarray((m_size, n_size), dtype=a_t.dtype, buffer=nl.shared_hbm)
        deep = k_size // P
        for n in range(0, n_size, COLUMNS):
            values = nl.ndarray((P, deep, COLUMNS), dtype=b.dtype, buffer=nl.sbuf)
            for k in range(deep):
                nisa.dma_copy(dst=values[:, k, :], src=b[k * P : k * P + P, n : n + COLUMNS])
            for m in range(0, m_size, P):
                total = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum)
                weights = nl.ndarray((P, P), dtype=a_t.dtype, buffer=nl.sbuf) if shared else None
                for k in range(deep):
                    tile = weights if shared else nl.ndarray((P, P), dtype=a_t.dtype, buffer=nl.sbuf)
                    nisa.dma_copy(dst=tile, src=a_t[k * P : k * P + P, m : m + P])
                    nisa.nc_matmul(dst=total, stationary=tile, moving=values[:, k, :])
                _store(out[m : m + P, n : n + COLUMNS], total)
        return out

    return _trace(kernel, k_size, m_size, n_size, dtype)


def _store(destination: Any, accumulator: Any) -> None:
    tile = nl.ndarray(accumulator.shape, dtype=destination.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=accumulator)
    nisa.dma_copy(dst=destination, src=tile)


def _trace(kernel: Any, k_size: int, m_size: int, n_size: int, dtype: str) -> Program:
    kind = getattr(dtypes, dtype)
    return nki_sim.trace(kernel, TensorSpec((k_size, m_size), kind), TensorSpec((k_size, n_size), kind))
