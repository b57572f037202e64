"""The measured attentions of several heads of `data/trn2_device/attention_fp32.csv`, written anew.

softmax(q k^T / sqrt(d)) v for each head of q, k and v (n x heads x d, float32; n at most 128).
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import nki_sim
from benchmarks.device_small import attention_tile
from nki_sim import dtypes
from nki_sim.machine import ISA
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.nki.kernel import Kernel
from nki_sim.program.program import Program
from nki_sim.tracing.session import TensorSpec

_LEAST_RUN_BYTES, _MOST_RUN_BYTES = 2048, 16384
"""Of a row of a chunk."""
_ITEM = 4


def one_by_one(n: int, heads: int, d: int) -> Program:
    """Form 0 for each head in turn, all tiles afresh, on one core."""

    def kernel(q: Any, k: Any, v: Any) -> Any:
        out = nl.ndarray((n, heads, d), dtype=nl.float32, buffer=nl.shared_hbm)
        for head in range(heads):
            attention_tile(0, n, d, *(each[:, head, :] for each in (q, k, v, out)))
        return out

    return nki_sim.trace(kernel, *[TensorSpec((n, heads, d), dtypes.float32)] * 3)


def chunked(n: int, heads: int, d: int) -> Program:
    """On two cores, each with half of the heads: chunks of heads loaded together, their scores in groups."""
    mine = heads // 2
    chunk = _chunk(mine, d)
    group = max(g for g in _divisors(chunk) if g * max(n, d) * _ITEM <= ISA.psum_bank_bytes)
    factor = 1 / sqrt(d)

    def attend(query: Any, key: Any, value: Any, result: Any, heads_of: range) -> None:
        """The heads of one group, of a chunk's tiles (n x chunk x d)."""
        scores = _psum(n, group, n)
        for at, head in enumerate(heads_of):
            turned = _psum(d, 2 * n)
            nisa.nc_transpose(dst=turned[:, :n], data=query[:, head, :], engine=nisa.engine.tensor)
            nisa.nc_transpose(dst=turned[:, n:], data=key[:, head, :], engine=nisa.engine.tensor)
            query_t, key_t = _sbuf(d, n), _sbuf(d, n)
            nisa.activation(dst=query_t, op=nl.copy, data=turned[:, :n], scale=factor)
            nisa.tensor_copy(dst=key_t, src=turned[:, n:])
            nisa.nc_matmul(dst=scores[:, at, :], stationary=query_t, moving=key_t)
        bias, total, inverse = (_sbuf(n, group) for _ in range(3))
        nisa.tensor_reduce(dst=bias, op=nl.maximum, data=scores, axis=2, negate=True)
        mixed = _psum(n, group, d)
        for at, head in enumerate(heads_of):
            column = slice(at, at + 1)
            weights, weights_t, turned = _sbuf(n, n), _sbuf(n, n), _psum(n, n)
            nisa.activation_reduce(
                dst=weights, op=nl.exp, data=scores[:, at, :], bias=bias[:, column],
                reduce_op=nl.add, reduce_res=total[:, column],
            )  # fmt: skip
            nisa.nc_transpose(dst=turned, data=weights, engine=nisa.engine.tensor)
            nisa.tensor_copy(dst=weights_t, src=turned)
            nisa.nc_matmul(dst=mixed[:, at, :], stationary=weights_t, moving=value[:, head, :])
        nisa.reciprocal(dst=inverse, data=total)
        for at, head in enumerate(heads_of):
            nisa.tensor_scalar(
                dst=result[:, head, :], data=mixed[:, at, :], op0=nl.multiply, operand0=inverse[:, at : at + 1]
            )

    def kernel(q: Any, k: Any, v: Any) -> Any:
        out = nl.ndarray((n, heads, d), dtype=nl.float32, buffer=nl.shared_hbm)
        sync, scalar = nisa.engine.sync, nisa.engine.scalar
        first = nl.program_id() * mine
        for head in range(first, first + mine, chunk):
            here = slice(head, head + chunk)
            query, key, value, result = (_sbuf(n, chunk, d) for _ in range(4))
            for tile, source, queue in ((query, q, sync), (key, k, scalar), (value, v, sync)):
                nisa.dma_copy(dst=tile, src=source[:, here, :], engine=queue, dge_mode=nisa.dge_mode.hwdge)
            for at in range(0, chunk, group):
                attend(query, key, value, result, range(at, at + group))
            nisa.dma_copy(dst=out[:, here, :], src=result, engine=sync, dge_mode=nisa.dge_mode.hwdge)
        return out

    return nki_sim.trace(Kernel(kernel, 2), *[TensorSpec((n, heads, d), dtypes.float32)] * 3)


KERNELS = {"heads_loop": one_by_one, "heads_chunked": chunked}
"""By their names in the file."""


def _divisors(number: int) -> list[int]:
    return [k for k in range(1, number + 1) if number % k == 0]


def _chunk(heads: int, d: int) -> int:
    """Heads loaded together: the fewest whose rows are long enough, else the most that are not too long."""
    sizes = {c: c * d * _ITEM for c in _divisors(heads)}
    long = [c for c, nbytes in sizes.items() if nbytes >= _LEAST_RUN_BYTES]
    return min(long) if long else max(c for c, nbytes in sizes.items() if nbytes <= _MOST_RUN_BYTES)


def _sbuf(*shape: int) -> Any:
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)


def _psum(*shape: int) -> Any:
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
