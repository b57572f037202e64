"""Kernels that do what the measured ones did: same loops, same tiles, same transfers; written anew.

Each function returns a traced `Program`.
"""

from __future__ import annotations

from typing import Any

import nki_sim
from nki_sim import dtypes
from nki_sim.program.program import Program
from nki_sim.tracing.session import TensorSpec

nki_sim.install()

import nki.isa as nisa  # noqa: E402  # only importable once the simulator is installed
import nki.language as nl  # noqa: E402  # the same

P, COLUMNS = 128, 512


def matmul_loads_inside(k_size: int, m_size: int, n_size: int) -> Program:
    """C01: both tiles are loaded for every single product."""

    def kernel(lhs_t: Any, rhs: Any) -> Any:
        out = nl.ndarray((m_size, n_size), dtype=nl.float32, buffer=nl.shared_hbm)
        for m in range(0, m_size, P):
            for n in range(0, n_size, COLUMNS):
                total = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum)
                for k in range(0, k_size, P):
                    weights = _load(lhs_t[k : k + P, m : m + P])
                    values = _load(rhs[k : k + P, n : n + COLUMNS])
                    nisa.nc_matmul(dst=total, stationary=weights, moving=values)
                _store(out[m : m + P, n : n + COLUMNS], total)
        return out

    return _trace_matmul(kernel, k_size, m_size, n_size)


def matmul_blocked(k_size: int, m_size: int, n_size: int, block_m: int, block_n: int) -> Program:
    """C02 (1 x 1 tiles) and C03 (2 x 2): a block's columns are loaded once, over all of K.

    The public C03 names all of a block's tiles before their first use, more than SBUF holds; its compiler
    moved the loads. Here they stand where they can be carried out.
    """

    def kernel(lhs_t: Any, rhs: Any) -> Any:
        out = nl.ndarray((m_size, n_size), dtype=nl.float32, buffer=nl.shared_hbm)
        depth = range(0, k_size, P)
        for m0 in range(0, m_size, P * block_m):
            rows = range(m0, m0 + P * block_m, P)
            weights = {m: [_load(lhs_t[k : k + P, m : m + P]) for k in depth] for m in rows}
            for n0 in range(0, n_size, COLUMNS * block_n):
                columns = range(n0, n0 + COLUMNS * block_n, COLUMNS)
                for n in columns:
                    values = [_load(rhs[k : k + P, n : n + COLUMNS]) for k in depth]
                    for m in rows:
                        total = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum)
                        for weight, value in zip(weights[m], values):
                            nisa.nc_matmul(dst=total, stationary=weight, moving=value)
                        _store(out[m : m + P, n : n + COLUMNS], total)
        return out

    return _trace_matmul(kernel, k_size, m_size, n_size)


def matmul_fully_blocked(k_size: int, m_size: int, n_size: int, block_m: int, block_n: int, block_k: int) -> Program:
    """C04: K is blocked as well, so partial sums wait in SBUF and Vector adds to them.

    With 16 row tiles at a time, as in the public C04, SBUF is 16 KiB too small.
    """

    def kernel(lhs_t: Any, rhs: Any) -> Any:
        out = nl.ndarray((m_size, n_size), dtype=nl.float32, buffer=nl.shared_hbm)
        wide_m, wide_n, deep = P * block_m, COLUMNS * block_n, P * block_k
        for n0 in range(0, n_size, wide_n):
            sums = {}
            for m in range(0, m_size, P):
                for n in range(0, wide_n, COLUMNS):
                    sums[m, n] = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.memset(dst=sums[m, n], value=0.0)
            for k0 in range(0, k_size, deep):
                values = [_load(rhs[k : k + P, n0 : n0 + wide_n]) for k in range(k0, k0 + deep, P)]
                for m0 in range(0, m_size, wide_m):
                    weights = [_load(lhs_t[k : k + P, m0 : m0 + wide_m]) for k in range(k0, k0 + deep, P)]
                    for n in range(0, wide_n, COLUMNS):
                        for m in range(0, wide_m, P):
                            part = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum)
                            for weight, value in zip(weights, values):
                                nisa.nc_matmul(
                                    dst=part, stationary=weight[:, m : m + P], moving=value[:, n : n + COLUMNS]
                                )
                            total = sums[m0 + m, n]
                            nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
            for m in range(0, m_size, P):
                packed = nl.ndarray((P, wide_n), dtype=nl.float32, buffer=nl.sbuf)
                for n in range(0, wide_n, COLUMNS):
                    nisa.tensor_copy(dst=packed[:, n : n + COLUMNS], src=sums[m, n])
                _move(out[m : m + P, n0 : n0 + wide_n], packed)
        return out

    return _trace_matmul(kernel, k_size, m_size, n_size)


def matmul_bf16_square(size: int = 2048, block_m: int = 4, block_k: int = 8) -> Program:
    """C05: bf16, output columns outermost, partial sums kept in SBUF as bf16, two operand buffers in turn."""

    def kernel(lhs_t: Any, rhs: Any) -> Any:
        out = nl.ndarray((size, size), dtype=nl.bfloat16, buffer=nl.shared_hbm)
        wide_m, deep = P * block_m, P * block_k

        def tiles(count: int, columns: int) -> list[Any]:
            return [nl.ndarray((P, columns), dtype=nl.bfloat16, buffer=nl.sbuf) for _ in range(count)]

        for n in range(0, size, COLUMNS):
            sums = tiles(size // P, COLUMNS)
            for total in sums:
                nisa.memset(dst=total, value=0.0)
            for k0 in range(0, size, deep):
                values = tiles(block_k, COLUMNS)
                for at, value in enumerate(values):
                    _move(value, rhs[k0 + at * P : k0 + at * P + P, n : n + COLUMNS])
                for m0 in range(0, size, wide_m):
                    weights = tiles(block_k, wide_m)
                    for at, weight in enumerate(weights):
                        _move(weight, lhs_t[k0 + at * P : k0 + at * P + P, m0 : m0 + wide_m])
                    for m in range(0, wide_m, P):
                        part = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum)
                        rounded = nl.ndarray((P, COLUMNS), dtype=nl.bfloat16, buffer=nl.sbuf)
                        nisa.memset(dst=part, value=0.0)
                        for weight, value in zip(weights, values):
                            nisa.nc_matmul(dst=part, stationary=weight[:, m : m + P], moving=value)
                        nisa.tensor_copy(dst=rounded, src=part)
                        total = sums[(m0 + m) // P]
                        nisa.tensor_tensor(dst=total, data1=total, data2=rounded, op=nl.add)
            for row, total in enumerate(sums):
                _move(out[row * P : row * P + P, n : n + COLUMNS], total)
        return out

    shape = TensorSpec((size, size), dtypes.bfloat16)
    return nki_sim.trace(kernel, shape, shape)


def adamw(columns: int, rows: int = 10944, width: int = 2048) -> Program:
    """C06-C18: the tensors as 128 long rows, `columns` at a time; 2 Scalar and 4 Vector instructions per tile.

    Compiled, like all of that source, with descriptors prepared in memory.
    """
    prepared = nisa.dge_mode.none
    length = rows * width // P
    if length % columns:
        raise ValueError(f"adamw: {columns} columns do not divide {length}")

    def kernel(theta: Any, gradient: Any, momentum: Any, variance: Any) -> Any:
        out = nl.ndarray((P, length), dtype=nl.float32, buffer=nl.shared_hbm)

        def tile() -> Any:
            return nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.sbuf)

        for at in range(0, length, columns):
            here = slice(at, at + columns)
            old, grad, first, second = (
                _load(tensor.reshape((P, length))[:, here], prepared)
                for tensor in (theta, gradient, momentum, variance)
            )
            square, corrected, root, mixed, step, new = (tile() for _ in range(6))
            nisa.activation(dst=square, op=nl.square, data=grad)
            _fused(corrected, second, nl.multiply, 999.0, nl.add, square)
            nisa.activation(dst=root, op=nl.rsqrt, data=corrected)
            _fused(mixed, first, nl.multiply, 9.0, nl.add, grad)
            _fused(step, mixed, nl.multiply, 0.001, nl.multiply, root)
            _fused(new, old, nl.multiply, 0.99999, nl.subtract, step)
            _move(out[:, here], new, prepared)
        return out

    shape = TensorSpec((rows, width), dtypes.float32)
    return nki_sim.trace(kernel, shape, shape, shape, shape)


def tiled_copy(columns: int, tiles: int = 16) -> Program:
    """M15, M16: bf16 tiles through SBUF and back, on every queue there is."""

    def kernel(source: Any) -> Any:
        out = nl.ndarray((P, columns * tiles), dtype=nl.bfloat16, buffer=nl.shared_hbm)
        queues = (nisa.engine.sync, nisa.engine.scalar, nisa.engine.gpsimd)
        for at in range(tiles):
            here = slice(at * columns, (at + 1) * columns)
            tile = nl.ndarray((P, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=source[:, here], engine=queues[at % 3])
            nisa.dma_copy(dst=out[:, here], src=tile, engine=queues[(at + 1) % 3])
        return out

    return nki_sim.trace(kernel, TensorSpec((P, columns * tiles), dtypes.bfloat16))


def _fused(dst: Any, data: Any, op0: Any, operand0: float, op1: Any, operand1: Any) -> None:
    nisa.scalar_tensor_tensor(dst=dst, data=data, op0=op0, operand0=operand0, op1=op1, operand1=operand1)


def _move(dst: Any, src: Any, mode: Any = nisa.dge_mode.hwdge) -> None:
    """Loads on one queue, stores on another; C01 has one transfer every 0.60 us, which is what hardware makes."""
    queue = nisa.engine.sync if dst.buffer is nl.sbuf else nisa.engine.scalar
    nisa.dma_copy(dst=dst, src=src, engine=queue, dge_mode=mode)


def _load(source: Any, mode: Any = nisa.dge_mode.hwdge) -> Any:
    tile = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    _move(tile, source, mode)
    return tile


def _store(destination: Any, accumulator: Any) -> None:
    tile = nl.ndarray(accumulator.shape, dtype=destination.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=accumulator)
    _move(destination, tile)


def _trace_matmul(kernel: Any, k_size: int, m_size: int, n_size: int) -> Program:
    return nki_sim.trace(
        kernel, TensorSpec((k_size, m_size), dtypes.float32), TensorSpec((k_size, n_size), dtypes.float32)
    )
