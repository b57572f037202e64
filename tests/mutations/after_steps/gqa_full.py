"""Attention without a mask, query heads in groups that share a key-value head, float32.

q is [B, N, QH, D], k and v are [B, N, KH, D], the result is [B, QH, N, D], D at most 128. 128 queries at a
time: their whole row of scores is held in SBUF, its maximum is subtracted before the exponential, and
the sum divides the output instead of the row.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_Q = 128
TILE_V = 128
TILE_S = 128

TUNABLES = {"TILE_S": (128, 256, 512)}


@nki.jit
def kernel(q, k, v):
    B, N, QH, D = q.shape
    B_k, N_k, KH, D_k = k.shape
    assert D <= 128, "D must fit into the partitions"
    assert QH % KH == 0, "query heads must divide into the key heads"
    assert N % TILE_S == 0, "N must be a multiple of TILE_S"
    assert N % TILE_Q == 0, "N must be a multiple of TILE_Q"
    result = nl.ndarray((B, QH, N, D), dtype=q.dtype, buffer=nl.shared_hbm)

    for b in range(B):
        for h in range(QH):
            kv = h // (QH // KH)
            # Once: the same for every i.
            k_tiles = []
            for s in range(N // TILE_S):
                k_tiles_s = []
                for r in range(TILE_S // 128):
                    k_tile = nl.ndarray((128, D), dtype=k.dtype, buffer=nl.sbuf)
                    at = s * TILE_S + r * 128
                    nisa.dma_copy(dst=k_tile, src=k[b, at : at + 128, kv, 0:D])
                    k_tiles_s.append(k_tile)
                k_tiles.append(k_tiles_s)

            # Once: the same for every i.
            k_t_tiles = []
            for s in range(N // TILE_S):
                k_t = nl.ndarray((D, TILE_S), dtype=k.dtype, buffer=nl.sbuf)
                for r in range(TILE_S // 128):
                    k_turned = nl.ndarray((D, 128), dtype=k.dtype, buffer=nl.psum)
                    nisa.nc_transpose(dst=k_turned, data=k_tiles[s][r])
                    nisa.tensor_copy(dst=k_t[:, r * 128 : (r + 1) * 128], src=k_turned, engine=nisa.engine.scalar)
                k_t_tiles.append(k_t)

            for i in range(N // TILE_Q):
                q_tile = nl.ndarray((TILE_Q, D), dtype=q.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=q_tile, src=q[b, i * TILE_Q : (i + 1) * TILE_Q, h, 0:D])
                q_turned = nl.ndarray((D, TILE_Q), dtype=q.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=q_turned, data=q_tile)
                q_t = nl.ndarray((D, TILE_Q), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_scalar(dst=q_t, data=q_turned, op0=nl.multiply, operand0=1.0 / D**0.5)

                scores = nl.ndarray((TILE_Q, N), dtype=nl.float32, buffer=nl.sbuf)
                for s in range(N // TILE_S):
                    product = nl.ndarray((TILE_Q, TILE_S), dtype=nl.float32, buffer=nl.psum)
                    nisa.nc_matmul(dst=product, stationary=q_t, moving=k_t_tiles[s])
                    nisa.tensor_copy(dst=scores[:, s * TILE_S : (s + 1) * TILE_S], src=product)

                negative_max = nl.ndarray((TILE_Q, 1), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_reduce(dst=negative_max, op=nl.maximum, data=scores, axis=1, negate=True)
                weights = nl.ndarray((TILE_Q, N), dtype=nl.float32, buffer=nl.sbuf)
                nisa.activation(dst=weights, op=nl.exp, data=scores, bias=negative_max)
                total = nl.ndarray((TILE_Q, 1), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_reduce(dst=total, op=nl.add, data=weights, axis=1)
                inverse = nl.ndarray((TILE_Q, 1), dtype=nl.float32, buffer=nl.sbuf)
                nisa.reciprocal(dst=inverse, data=total)

                acc = nl.ndarray((TILE_Q, D), dtype=nl.float32, buffer=nl.psum)
                for j in range(N // TILE_V):
                    weights_turned = nl.ndarray((TILE_V, TILE_Q), dtype=nl.float32, buffer=nl.psum)
                    nisa.nc_transpose(dst=weights_turned, data=weights[:, j * TILE_V : (j + 1) * TILE_V])
                    weights_t = nl.ndarray((TILE_V, TILE_Q), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=weights_t, src=weights_turned)
                    v_tile = nl.ndarray((TILE_V, D), dtype=v.dtype, buffer=nl.sbuf)
                    nisa.dma_copy(dst=v_tile, src=v[b, j * TILE_V : (j + 1) * TILE_V, kv, 0:D])
                    nisa.nc_matmul(dst=acc, stationary=weights_t, moving=v_tile)
                out = nl.ndarray((TILE_Q, D), dtype=result.dtype, buffer=nl.sbuf)
                acc_out = nl.ndarray((TILE_Q, D), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_copy(dst=acc_out, src=acc, engine=nisa.engine.scalar)
                nisa.tensor_scalar(dst=out, data=acc_out, op0=nl.multiply, operand0=inverse)
                nisa.dma_copy(dst=result[b, h, i * TILE_Q : (i + 1) * TILE_Q, 0:D], src=out)
    return result
