"""The measured variants of NKIBench's matmul, bmm and rope in `data/trn2_device/kda_beta1.csv`, written anew.

Each function returns a traced `Program`: same loops, tiles and transfers as what was measured, in the current dialect,
with `device_decisions` in place of that compiler. Inputs are float32. `buffers`: tiles that streaming loads take in
turn, 0 for fresh ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.device_decisions import COLUMNS, Decisions, P, Rotation, trace
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.program.program import Program


def matmul(
    m_size: int, k_size: int, n_size: int, row_tiles: int, limbs: str = "float32", *, buffers: int = 3
) -> Program:
    """(M x K) times (K x N): `row_tiles` x 128 rows transposed first, then every 128 x 512 of the right side once.

    `limbs`: float32; split, which keeps an operand as two bfloat16 and adds three products; or bfloat16, the first of
    these products alone.
    """

    def kernel(lhs: Any, rhs: Any) -> Any:
        do = Decisions()
        out = nl.ndarray((m_size, n_size), dtype=nl.float32, buffer=nl.shared_hbm)
        identity = do.constant(np.eye(P))
        plain = Rotation((P, P), nl.float32, buffers)
        streamed = Rotation((P, COLUMNS), nl.bfloat16 if limbs == "bfloat16" else nl.float32, buffers)
        depth = range(0, k_size, P)
        for m0 in range(0, m_size, P * row_tiles):
            rows = range(m0, m0 + P * row_tiles, P)
            weights = {}
            for m in rows:
                for k in depth:
                    tile = plain.tile()
                    do.transfer(tile, lhs[m : m + P, k : k + P])
                    weights[m, k] = _limbs(do, _transposed(tile, identity), limbs)
            for n in range(0, n_size, COLUMNS):
                sums = {m: nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum) for m in rows}
                for k in depth:
                    tile = streamed.tile()
                    do.transfer(tile, rhs[k : k + P, n : n + COLUMNS])
                    values = _split(do, tile) if limbs == "split" else (tile,)
                    for m in rows:
                        for i, j in ((0, 0), (0, 1), (1, 0))[: 3 if limbs == "split" else 1]:
                            nisa.nc_matmul(dst=sums[m], stationary=weights[m, k][i], moving=values[j])
                for m in rows:
                    tile = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
                    do.copy(tile, sums[m])
                    do.transfer(out[m : m + P, n : n + COLUMNS], tile)
        return out

    return trace(kernel, (m_size, k_size), (k_size, n_size))


def bmm(
    batches: int,
    m_size: int,
    k_size: int,
    n_size: int,
    tiles_ahead: int,
    wide: int,
    batch_block: int = 1,
    dtype: str = "float32",
    *,
    buffers: int = 3,
) -> Program:
    """For every batch (M x K) times (K x N), K at most 128, so that a product is a whole output tile.

    `tiles_ahead`: tiles of 128 rows transposed before the products on them start, of `batch_block` batches together.
    `wide`: columns of a store. `dtype`: of the products' operands.
    """

    def kernel(lhs: Any, rhs: Any) -> Any:
        do = Decisions()
        out = nl.ndarray((batches, m_size, n_size), dtype=nl.float32, buffer=nl.shared_hbm)
        kept = getattr(nl, dtype)
        identity = do.constant(np.eye(P))
        loaded = Rotation((P, k_size), nl.float32, buffers)
        for b0 in range(0, batches, batch_block):
            block = range(b0, b0 + batch_block)
            values = {b: nl.ndarray((k_size, n_size), dtype=kept, buffer=nl.sbuf) for b in block}
            for b in block:
                do.transfer(values[b], rhs[b])
            for m0 in range(0, m_size, P * tiles_ahead):
                weights = {b: nl.ndarray((k_size, P * tiles_ahead), dtype=kept, buffer=nl.sbuf) for b in block}
                for b in block:
                    for at in range(0, P * tiles_ahead, P):
                        tile = loaded.tile()
                        do.transfer(tile, lhs[b, m0 + at : m0 + at + P, :])
                        do.copy(weights[b][:, at : at + P], _transposed(tile, identity))
                for b in block:
                    for at in range(0, P * tiles_ahead, P):
                        for n0 in range(0, n_size, wide):
                            starts = range(0, wide, COLUMNS)
                            parts = [nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum) for _ in starts]
                            for part, n in zip(parts, starts):
                                columns = values[b][:, n0 + n : n0 + n + COLUMNS]
                                nisa.nc_matmul(dst=part, stationary=weights[b][:, at : at + P], moving=columns)
                            tile = nl.ndarray((P, wide), dtype=nl.float32, buffer=nl.sbuf)
                            for part, n in zip(parts, starts):
                                do.copy(tile[:, n : n + COLUMNS], part)
                            do.transfer(out[b, m0 + at : m0 + at + P, n0 : n0 + wide], tile)
        return out

    return trace(kernel, (batches, m_size, k_size), (batches, k_size, n_size))


def rope_halves(half: int, length: int, width: int, *, buffers: int = 3) -> Program:
    """Rotary embedding of (2 half x length) by cosines and sines of (half x length): both halves from partition 0 on.

    Six Vector instructions on `half` partitions for every `width` columns.
    """

    def kernel(x: Any, cos: Any, sin: Any) -> Any:
        do = Decisions()
        out = nl.ndarray((2 * half, length), dtype=nl.float32, buffer=nl.shared_hbm)
        operands = [Rotation((half, width), nl.float32, buffers) for _ in range(4)]
        for at in range(0, length, width):
            here = slice(at, at + width)
            low, high, cosine, sine = (operand.tile() for operand in operands)
            sources = x[:half, here], x[half:, here], cos[:, here], sin[:, here]
            for tile, source in zip((low, high, cosine, sine), sources):
                do.transfer(tile, source)
            turned = _combined(do, (low, cosine), (high, sine), nl.subtract)
            do.transfer(out[:half, here], turned)
            turned = _combined(do, (high, cosine), (low, sine), nl.add)
            do.transfer(out[half:, here], turned)
        return out

    return _trace_rope(kernel, half, length)


def rope_baseline(half: int, length: int, width: int = COLUMNS) -> Program:
    """As NKIBench ships it, unrolled: the second half is copied to partition 0, results share a tile and a store."""

    def kernel(x: Any, cos: Any, sin: Any) -> Any:
        do = Decisions()
        out = nl.ndarray((2 * half, length), dtype=nl.float32, buffer=nl.shared_hbm)
        for at in range(0, length, width):
            here = slice(at, at + width)
            both, result = (nl.ndarray((2 * half, width), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
            cosine, sine, high = (nl.ndarray((half, width), dtype=nl.float32, buffer=nl.sbuf) for _ in range(3))
            do.transfer(both, x[:, here])
            do.transfer(cosine, cos[:, here])
            do.transfer(sine, sin[:, here])
            low = both[:half, :]
            do.copy(high, both[half:, :])
            low_cosine, high_cosine = _product(do, low, cosine), _product(do, high, cosine)
            low_sine, high_sine = _product(do, low, sine), _product(do, high, sine)
            do.tensor_tensor(result[:half, :], low_cosine, high_sine, nl.subtract)
            do.tensor_tensor(result[half:, :], high_cosine, low_sine, nl.add)
            do.transfer(out[:, here], result)
        return out

    return _trace_rope(kernel, half, length)


def rope_packed(half: int, length: int, width: int, *, on_tensor: bool = False, buffers: int = 3) -> Program:
    """The same on all partitions, so that three Vector instructions do: Scalar copies across the halves.

    `on_tensor`: the swap of the halves, one negated, is a product with a permutation and stays in PSUM.
    """

    def kernel(x: Any, cos: Any, sin: Any) -> Any:
        do = Decisions()
        rows = 2 * half
        out = nl.ndarray((rows, length), dtype=nl.float32, buffer=nl.shared_hbm)
        swap: Any = do.constant(np.kron(np.array([[0, 1], [-1, 0]]), np.eye(half))) if on_tensor else None
        operands = [Rotation((rows, width), nl.float32, buffers) for _ in range(3)]
        for at in range(0, length, width):
            here = slice(at, at + width)
            both, cosine, sine = (operand.tile() for operand in operands)
            do.transfer(both, x[:, here])
            for tile, source in ((cosine, cos), (sine, sin)):
                do.transfer(tile[:half, :], source[:, here])
                do.activation(tile[half:, :], nl.copy, tile[:half, :])
            swapped = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.psum if on_tensor else nl.sbuf)
            if on_tensor:
                nisa.nc_matmul(dst=swapped, stationary=swap, moving=both)
            else:
                do.activation(swapped[:half, :], nl.copy, both[half:, :], scale=-1.0)
                do.activation(swapped[half:, :], nl.copy, both[:half, :])
            do.transfer(out[:, here], _combined(do, (both, cosine), (swapped, sine), nl.add))
        return out

    return _trace_rope(kernel, half, length)


def _product(do: Decisions, data1: Any, data2: Any) -> Any:
    tile = nl.ndarray(data1.shape, dtype=nl.float32, buffer=nl.sbuf)
    do.tensor_tensor(tile, data1, data2, nl.multiply)
    return tile


def _combined(do: Decisions, first: tuple[Any, Any], second: tuple[Any, Any], op: Any) -> Any:
    """op of two products."""
    products = _product(do, *first), _product(do, *second)
    tile = nl.ndarray(products[0].shape, dtype=nl.float32, buffer=nl.sbuf)
    do.tensor_tensor(tile, *products, op)
    return tile


def _transposed(tile: Any, identity: Any) -> Any:
    """In PSUM: a product with the identity, as those kernels wrote it."""
    turned = nl.ndarray((tile.shape[1], P), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=turned, stationary=tile, moving=identity, is_transpose=True, is_moving_onezero=True)
    return turned


def _limbs(do: Decisions, turned: Any, limbs: str) -> tuple[Any, ...]:
    """What is kept of a transposed tile."""
    tile = nl.ndarray((P, P), dtype=nl.bfloat16 if limbs == "bfloat16" else nl.float32, buffer=nl.sbuf)
    do.copy(tile, turned)
    return _split(do, tile) if limbs == "split" else (tile,)


def _split(do: Decisions, tile: Any) -> tuple[Any, Any]:
    """High and low half of a float32 tile, in bfloat16."""
    high, low = (nl.ndarray(tile.shape, dtype=nl.bfloat16, buffer=nl.sbuf) for _ in range(2))
    do.copy(high, tile)
    do.tensor_tensor(low, tile, high, nl.subtract)
    return high, low


def _trace_rope(kernel: Any, half: int, length: int) -> Program:
    return trace(kernel, (2 * half, length), (half, length), (half, length))
