"""The measured streams and attentions of `data/trn2_device`, written anew from their descriptions there.

Each function returns a traced `Program`. Their figures hold the runtime's launch, which no program does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import nki_sim
from nki_sim import dtypes
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.program.program import Engine, Program
from nki_sim.tracing.session import TensorSpec

P = 128

PACKED_ELEMENTS = 16384
"""Of a partition, at most, in one transfer of `copy_packed`."""


def copy_rows(shapes: Sequence[tuple[int, int]], dtype: str = "bfloat16") -> Program:
    """Every tensor of rows x columns through SBUF, 128 rows at a time."""

    def kernel(*sources: Any) -> Any:
        results = [nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.shared_hbm) for source in sources]
        for source, out in zip(sources, results):
            for row in range(0, source.shape[0], P):
                tile = nl.ndarray((P, source.shape[1]), dtype=source.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=tile, src=source[row : row + P, :])
                nisa.dma_copy(dst=out[row : row + P, :], src=tile)
        return tuple(results)

    return _trace(kernel, shapes, dtype)


def copy_packed(shapes: Sequence[tuple[int, int]], dtype: str = "bfloat16") -> Program:
    """The same with neighbouring rows side by side in a partition, so that a transfer's rows are long."""

    def kernel(*sources: Any) -> Any:
        results = [nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.shared_hbm) for source in sources]
        for source, out in zip(sources, results):
            length = source.size // P
            packed, packed_out = source.reshape((P, length)), out.reshape((P, length))
            for at in range(0, length, PACKED_ELEMENTS):
                here = slice(at, min(at + PACKED_ELEMENTS, length))
                tile = nl.ndarray((P, here.stop - at), dtype=source.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=tile, src=packed[:, here])
                nisa.dma_copy(dst=packed_out[:, here], src=tile)
        return tuple(results)

    return _trace(kernel, shapes, dtype)


def rms(shapes: Sequence[tuple[int, int]], dtype: str = "bfloat16") -> Program:
    """x / sqrt(mean(x^2 along the row)) * weight, for every tensor x and its weight row, 1 x columns.

    Inputs are all tensors, then all weights. A tile stays in `dtype`; the sum and the factor are float32.
    """

    def kernel(*tensors: Any) -> Any:
        sources, weights = tensors[: len(shapes)], tensors[len(shapes) :]
        results = [nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.shared_hbm) for source in sources]
        for source, weight, out in zip(sources, weights, results):
            columns = source.shape[1]
            spread = nl.ndarray((P, columns), dtype=source.dtype, buffer=nl.sbuf)
            for partition in range(P):
                nisa.dma_copy(dst=spread[partition : partition + 1, :], src=weight)
            for row in range(0, source.shape[0], P):
                tile, square, scaled, result = (
                    nl.ndarray((P, columns), dtype=source.dtype, buffer=nl.sbuf) for _ in range(4)
                )
                total, factor = (nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
                nisa.dma_copy(dst=tile, src=source[row : row + P, :])
                _summed(square, nl.square, tile, total)
                nisa.activation(dst=factor, op=nl.rsqrt, data=total, scale=1 / columns)
                nisa.tensor_scalar(dst=scaled, data=tile, op0=nl.multiply, operand0=factor)
                nisa.tensor_tensor(dst=result, data1=scaled, data2=spread, op=nl.multiply)
                nisa.dma_copy(dst=out[row : row + P, :], src=result)
        return tuple(results)

    return _trace(kernel, [*shapes, *((1, columns) for _, columns in shapes)], dtype)


@dataclass(frozen=True)
class Form:
    fused: bool
    """The scale is in the copy of q, on Scalar, and the row's sum in the exponential."""
    narrow: bool = False
    """Weights and values in bfloat16."""
    hardware: bool = False
    """Descriptors: q, v and the result on Sync's queue, k on Scalar's."""


FORMS = {
    0: Form(fused=False),
    1: Form(fused=True),
    2: Form(fused=True, narrow=True),
    5: Form(fused=True, hardware=True),
    6: Form(fused=True, narrow=True, hardware=True),
}
"""By the numbers in `attention_fp32.csv`."""


def attention(form: int, n: int, d: int) -> Program:
    """softmax(q k^T / sqrt(d)) v on one tile: q, k and v are n x d, n at most 128.

    Raises ValueError for a form that is not in `FORMS`.
    """
    if form not in FORMS:
        raise ValueError(f"attention form {form}: one of {', '.join(map(str, FORMS))}")

    def kernel(q: Any, k: Any, v: Any) -> Any:
        out = nl.ndarray((n, d), dtype=nl.float32, buffer=nl.shared_hbm)
        attention_tile(form, n, d, q, k, v, out)
        return out

    return _trace(kernel, [(n, d)] * 3, "float32")


def attention_tile(form: int, n: int, d: int, q: Any, k: Any, v: Any, out: Any) -> None:
    """One head in a kernel; q, k, v and out are n x d in HBM."""
    how = FORMS[form]
    factor = 1 / sqrt(d)

    def move(dst: Any, src: Any, queue: Engine) -> None:
        if how.hardware:
            nisa.dma_copy(dst=dst, src=src, engine=queue, dge_mode=nisa.dge_mode.hwdge)
        else:
            nisa.dma_copy(dst=dst, src=src)

    def sbuf(*shape: int, dtype: Any = nl.float32) -> Any:
        return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)

    def psum(*shape: int, dtype: Any = nl.float32) -> Any:
        return nl.ndarray(shape, dtype=dtype, buffer=nl.psum)

    def transposed(data: Any) -> Any:
        turned = psum(data.shape[1], data.shape[0], dtype=data.dtype)
        nisa.nc_transpose(dst=turned, data=data, engine=nisa.engine.tensor)
        return turned

    kept = nl.bfloat16 if how.narrow else nl.float32
    query, key, value = (sbuf(n, d) for _ in range(3))
    move(query, q, nisa.engine.sync)
    move(key, k, nisa.engine.scalar)
    move(value, v, nisa.engine.sync)
    query_t, key_t, weights_t = sbuf(d, n), sbuf(d, n), sbuf(n, n, dtype=kept)
    if how.fused:
        nisa.activation(dst=query_t, op=nl.copy, data=transposed(query), scale=factor)
    else:
        nisa.tensor_copy(dst=query_t, src=transposed(query))
    nisa.tensor_copy(dst=key_t, src=transposed(key))
    scores = psum(n, n)
    nisa.nc_matmul(dst=scores, stationary=query_t, moving=key_t)
    largest, bias, total, inverse = (sbuf(n, 1) for _ in range(4))
    nisa.tensor_reduce(dst=largest, op=nl.maximum, data=scores, axis=1)
    nisa.tensor_scalar(dst=bias, data=largest, op0=nl.multiply, operand0=-1.0 if how.fused else -factor)
    weights = sbuf(n, n, dtype=kept)
    if how.fused:
        _summed(weights, nl.exp, scores, total, bias=bias)
    else:
        nisa.activation(dst=weights, op=nl.exp, data=scores, bias=bias, scale=factor)
        nisa.tensor_reduce(dst=total, op=nl.add, data=weights, axis=1)
    if how.narrow:
        wide, value = value, sbuf(n, d, dtype=kept)
        nisa.tensor_copy(dst=value, src=wide)
    nisa.tensor_copy(dst=weights_t, src=transposed(weights))
    mixed, result = psum(n, d), sbuf(n, d)
    nisa.nc_matmul(dst=mixed, stationary=weights_t, moving=value)
    nisa.reciprocal(dst=inverse, data=total)
    nisa.tensor_scalar(dst=result, data=mixed, op0=nl.multiply, operand0=inverse)
    move(out, result, nisa.engine.sync)


def _summed(dst: Any, op: Any, data: Any, total: Any, bias: Any = None) -> None:
    """dst = op(data + bias) on Scalar, which adds up the row besides."""
    command = nisa.reduce_cmd.reset_reduce
    nisa.activation(dst=dst, op=op, data=data, bias=bias, reduce_op=nl.add, reduce_res=total, reduce_cmd=command)


def _trace(kernel: Any, shapes: Sequence[tuple[int, int]], dtype: str) -> Program:
    kind = getattr(dtypes, dtype)
    return nki_sim.trace(kernel, *(TensorSpec(shape, kind) for shape in shapes))
