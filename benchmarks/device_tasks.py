"""The measured variants of two NKIBench tasks, matmul and bmm, in `data/trn2_device/kda_beta1.csv`, written anew.

Each function returns a traced `Program`: same loops, tiles and transfers as what was measured, in the current dialect,
with `device_decisions` in place of that compiler. Inputs are float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.device_decisions import COLUMNS, Decisions, P, Rotation, trace
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.program import Program


def matmul(
    m_size: int, k_size: int, n_size: int, row_tiles: int, limbs: str = "float32", *, buffers: int = 3
) -> Program:
    """(M x K) times (K x N): `row_tiles` x 128 rows transposed first, then every 128 x 512 of the right side once.

    `limbs`: float32; split, which keeps an operand as two bfloat16 and adds three products; or bfloat16, the first of
    these products alone. `buffers`: tiles that the streaming loads take in turn.
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
    `wide`: columns of a store. `dtype`: of the products' operands. `buffers`: tiles that the rows' loads take in turn,
    0 for fresh ones.
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
