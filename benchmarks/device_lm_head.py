"""The measured end of a decode step of `data/trn2_device/lm_head.csv`, written anew from its description.

One token's row (H) out of the embedding table, RMS norm, its product with the matrix of the vocabulary (H x V,
bfloat16), and the largest logit's number, on two cores with half of the vocabulary each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nki_sim
from nki_sim import dtypes
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.nki.kernel import Kernel
from nki_sim.program.program import Program
from nki_sim.tracing.session import TensorSpec

P, COLUMNS = 128, 512
_LOWEST = -30_000.0
_EPSILON = 1e-6


def streamed(hidden: int, vocabulary: int, wide: int) -> Program:
    """The row stationary: each core's columns in blocks of `wide`, one transfer per 128 rows, software descriptors."""
    deep, half = hidden // P, vocabulary // 2

    def product(row: Any, matrix: Any, logits: Any) -> None:
        columns = _sbuf(P, deep)
        for at in range(deep):
            nisa.tensor_copy(dst=columns[:, at : at + 1], src=row[:, at : at + 1])
        tiles = [_sbuf(P, wide) for _ in range(deep)]
        result = _sbuf(1, half)
        first, copies = nl.program_id() * half, 0
        for left in range(0, half, wide):
            width = min(wide, half - left)
            for at, tile in enumerate(tiles):
                rows = slice(at * P, at * P + P)
                nisa.dma_copy(dst=tile[:, :width], src=matrix[rows, first + left : first + left + width])
            for begin in range(0, width, COLUMNS):
                count = min(COLUMNS, width - begin)
                total = nl.ndarray((1, COLUMNS), dtype=nl.float32, buffer=nl.psum)
                for at, tile in enumerate(tiles):
                    nisa.nc_matmul(
                        dst=total[:, :count], stationary=columns[:, at : at + 1], moving=tile[:, begin : begin + count]
                    )
                engine = (nisa.engine.scalar, nisa.engine.vector)[copies % 2]
                copies += 1
                here = slice(left + begin, left + begin + count)
                nisa.tensor_copy(dst=result[:, here], src=total[:, :count], engine=engine)
        nisa.dma_copy(dst=logits[:, first : first + half], src=result)

    return _trace(product, hidden, vocabulary, (hidden, vocabulary), vocabulary)


def packed(hidden: int, vocabulary: int, ring: int) -> Program:
    """The matrix stationary, packed so that 512 columns are one transfer of long rows, into `ring` slots in turn."""
    deep = hidden // P
    blocks = -(-vocabulary // (2 * COLUMNS))
    whole, parts = 2 * blocks * COLUMNS, COLUMNS // P

    def product(row: Any, matrix: Any, logits: Any) -> None:
        core = nl.program_id()
        slots = _sbuf(P, ring, deep, COLUMNS)
        result = _sbuf(P, blocks * parts, dtype=nl.float32)
        for block in range(blocks):
            slot = slots[:, block % ring, :, :]
            queue = (nisa.engine.sync, nisa.engine.scalar)[block % 2]
            nisa.dma_copy(
                dst=slot.reshape((P, deep * COLUMNS)), src=matrix[core, block], engine=queue,
                dge_mode=nisa.dge_mode.hwdge,
            )  # fmt: skip
            for part in range(parts):
                total = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.psum)
                for at in range(deep):
                    nisa.nc_matmul(
                        dst=total, stationary=slot[:, at, part * P : part * P + P], moving=row[:, at : at + 1]
                    )
                column = block * parts + part
                nisa.tensor_copy(dst=result[:, column : column + 1], src=total)
        if core:
            beyond = (whole - vocabulary) // P
            nisa.memset(dst=result[:, blocks * parts - beyond :], value=_LOWEST)
        narrow = _sbuf(P, blocks * parts)
        nisa.tensor_copy(dst=narrow, src=result)
        first = core * blocks * COLUMNS
        target = logits.ap([[1, P], [P, blocks * parts]], offset=first)
        nisa.dma_copy(dst=target, src=narrow, dge_mode=nisa.dge_mode.none)

    return _trace(product, hidden, vocabulary, (2, blocks, P, deep * COLUMNS), whole)


def _sbuf(*shape: int, dtype: Any = nl.bfloat16) -> Any:
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def _psum(*shape: int) -> Any:
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)


def _normed(row: Any, weights: Any, hidden: int) -> Any:
    """P x hidden/P, bfloat16: the row in runs, one partition each, divided by its root mean square, times weights."""
    deep = hidden // P
    x, w = _sbuf(P, 2, deep // 2), _sbuf(P, 2, deep // 2)
    for tile, source in ((x, row), (w, weights)):
        runs = source.ap([[deep // 2, P], [hidden // 2, 2], [1, deep // 2]])
        nisa.dma_copy(dst=tile, src=runs, dge_mode=nisa.dge_mode.none)
    x, w = (tile.reshape((P, deep)) for tile in (x, w))
    square, weighted = _sbuf(P, deep, dtype=nl.float32), _sbuf(P, deep, dtype=nl.float32)
    sums, factor = _sbuf(P, 1, dtype=nl.float32), _sbuf(P, 1, dtype=nl.float32)
    epsilon, ones = _sbuf(P, 1, dtype=nl.float32), _sbuf(P, P, dtype=nl.float32)
    nisa.memset(dst=ones, value=1.0)
    nisa.memset(dst=epsilon, value=_EPSILON)
    nisa.activation(dst=square, op=nl.square, data=x)
    nisa.tensor_reduce(dst=sums, op=nl.add, data=square, axis=1)
    nisa.tensor_tensor(dst=weighted, data1=x, data2=w, op=nl.multiply)
    total, normed = _psum(P, 1), _sbuf(P, deep)
    nisa.nc_matmul(dst=total, stationary=ones, moving=sums)
    nisa.activation(dst=factor, op=nl.rsqrt, data=total, scale=1 / hidden, bias=epsilon)
    nisa.tensor_scalar(dst=normed, data=weighted, op0=nl.multiply, operand0=factor)
    return normed


def _largest(logits: Any, chosen: Any, count: int) -> None:
    """On core 0; of core 1's the device's compiler left out what nobody reads."""
    wide = count // P
    values = _sbuf(P, wide)
    nisa.dma_copy(dst=values, src=logits.reshape((P, wide)))
    top, places = _sbuf(P, 8), _sbuf(P, 8, dtype=nl.uint32)
    nisa.memset(dst=top, value=_LOWEST)
    nisa.tensor_reduce(dst=top[:, :1], op=nl.maximum, data=values, axis=1)
    nisa.nc_find_index8(dst=places, data=values, vals=top)
    identity, diagonal = _sbuf(P, P, dtype=nl.float32), _sbuf(P, P, dtype=nl.float32)
    nisa.memset(dst=identity, value=1.0)
    nisa.affine_select(
        dst=diagonal, pattern=[[-1, P]], channel_multiplier=1, on_true_tile=identity, on_false_value=0.0,
        cmp_op=nl.equal,
    )  # fmt: skip
    rows = []
    for column in (top, places):
        wide_column, turned, row = _sbuf(P, 1, dtype=nl.float32), _psum(1, P), _sbuf(1, P, dtype=nl.float32)
        nisa.tensor_copy(dst=wide_column, src=column[:, :1])
        nisa.nc_matmul(dst=turned, stationary=wide_column, moving=diagonal, is_transpose=True, is_moving_onezero=True)
        nisa.tensor_copy(dst=row, src=turned)
        rows.append(row)
    best, base, index, mask = (_sbuf(1, size, dtype=nl.float32) for size in (1, P, P, P))
    nisa.tensor_reduce(dst=best, op=nl.maximum, data=rows[0], axis=1)
    nisa.iota(dst=base, pattern=[[wide, P]], offset=0)
    nisa.tensor_tensor(dst=index, data1=rows[1], data2=base, op=nl.add)
    nisa.tensor_scalar(dst=mask, data=rows[0], op0=nl.equal, operand0=best)
    nisa.tensor_tensor(dst=index, data1=index, data2=mask, op=nl.multiply)
    number = _sbuf(1, 1, dtype=nl.int32)
    nisa.tensor_reduce(dst=number, op=nl.maximum, data=index, axis=1)
    nisa.dma_copy(dst=chosen, src=number)


def _trace(
    product: Callable[[Any, Any, Any], None], hidden: int, vocabulary: int, matrix: tuple[int, ...], count: int
) -> Program:
    """`count`: logits with what fills them up."""

    def kernel(token: Any, table: Any, weights: Any, matrix: Any) -> Any:
        row = nl.ndarray((1, hidden), dtype=nl.bfloat16, buffer=nl.shared_hbm)
        logits = nl.ndarray((1, count), dtype=nl.bfloat16, buffer=nl.shared_hbm)
        chosen = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.shared_hbm)
        if nl.program_id() == 0:
            number, found = _sbuf(1, 1, dtype=nl.int32), _sbuf(1, hidden)
            nisa.dma_copy(dst=number, src=token)
            nisa.dma_copy(dst=found, src=table.ap([[hidden, 1], [1, hidden]], vector_offset=number))
            nisa.dma_copy(dst=row, src=found)
        nisa.core_barrier(row, (0, 1))
        product(_normed(row, weights, hidden), matrix, logits)
        nisa.core_barrier(logits, (0, 1))
        if nl.program_id() == 0:
            _largest(logits, chosen, count)
        return chosen

    return nki_sim.trace(
        Kernel(kernel, 2),
        TensorSpec((1, 1), dtypes.int32),
        TensorSpec((vocabulary, hidden), dtypes.bfloat16),
        TensorSpec((1, hidden), dtypes.bfloat16),
        TensorSpec(matrix, dtypes.bfloat16),
    )
