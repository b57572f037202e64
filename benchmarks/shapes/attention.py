"""Attention without a mask, query heads in groups that share a key-value head, float32, of any length.

The seed gqa_full, whose last tiles of queries, of scores and of values are narrower: q is [B, N, QH, D], k and v are
[B, N, KH, D], the result is [B, QH, N, D], D at most 128.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_Q = 128
TILE_S = 128


@nki.jit
def kernel(q, k, v):
    B, N, QH, D = q.shape
    B_k, N_k, KH, D_k = k.shape
    assert N_k == N, "as many keys as queries"
    assert D <= 128, "D must fit into the partitions"
    assert QH % KH == 0, "query heads must divide into the key heads"
    result = nl.ndarray((B, QH, N, D), dtype=q.dtype, buffer=nl.shared_hbm)

    for b in range(B):
        for h in range(QH):
            kv = h // (QH // KH)
            for i in range((N + TILE_Q - 1) // TILE_Q):
                i0 = i * TILE_Q
                height = min(TILE_Q, N - i0)
                q_tile = nl.ndarray((TILE_Q, D), dtype=q.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=q_tile[0:height, :], src=q[b, i0 : i0 + height, h, 0:D])
                q_turned = nl.ndarray((D, TILE_Q), dtype=q.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=q_turned[:, 0:height], data=q_tile[0:height, :])
                q_t = nl.ndarray((D, TILE_Q), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_scalar(
                    dst=q_t[:, 0:height], data=q_turned[:, 0:height], op0=nl.multiply, operand0=1.0 / D**0.5
                )

                scores = nl.ndarray((TILE_Q, N), dtype=nl.float32, buffer=nl.sbuf)
                for s in range((N + TILE_S - 1) // TILE_S):
                    s0 = s * TILE_S
                    width = min(TILE_S, N - s0)
                    k_tile = nl.ndarray((TILE_S, D), dtype=k.dtype, buffer=nl.sbuf)
                    nisa.dma_copy(dst=k_tile[0:width, :], src=k[b, s0 : s0 + width, kv, 0:D])
                    k_turned = nl.ndarray((D, TILE_S), dtype=k.dtype, buffer=nl.psum)
                    nisa.nc_transpose(dst=k_turned[:, 0:width], data=k_tile[0:width, :])
                    k_t = nl.ndarray((D, TILE_S), dtype=k.dtype, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=k_t[:, 0:width], src=k_turned[:, 0:width])
                    product = nl.ndarray((TILE_Q, TILE_S), dtype=nl.float32, buffer=nl.psum)
                    nisa.nc_matmul(dst=product[0:height, 0:width], stationary=q_t[:, 0:height], moving=k_t[:, 0:width])
                    nisa.tensor_copy(dst=scores[0:height, s0 : s0 + width], src=product[0:height, 0:width])

                negative_max = nl.ndarray((TILE_Q, 1), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_reduce(
                    dst=negative_max[0:height, :], op=nl.maximum, data=scores[0:height, :], axis=1, negate=True
                )
                weights = nl.ndarray((TILE_Q, N), dtype=nl.float32, buffer=nl.sbuf)
                nisa.activation(
                    dst=weights[0:height, :], op=nl.exp, data=scores[0:height, :], bias=negative_max[0:height, :]
                )
                total = nl.ndarray((TILE_Q, 1), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_reduce(dst=total[0:height, :], op=nl.add, data=weights[0:height, :], axis=1)
                inverse = nl.ndarray((TILE_Q, 1), dtype=nl.float32, buffer=nl.sbuf)
                nisa.reciprocal(dst=inverse[0:height, :], data=total[0:height, :])

                acc = nl.ndarray((TILE_Q, D), dtype=nl.float32, buffer=nl.psum)
                for j in range((N + TILE_S - 1) // TILE_S):
                    j0 = j * TILE_S
                    deep = min(TILE_S, N - j0)
                    weights_turned = nl.ndarray((TILE_S, TILE_Q), dtype=nl.float32, buffer=nl.psum)
                    nisa.nc_transpose(dst=weights_turned[0:deep, 0:height], data=weights[0:height, j0 : j0 + deep])
                    weights_t = nl.ndarray((TILE_S, TILE_Q), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=weights_t[0:deep, 0:height], src=weights_turned[0:deep, 0:height])
                    v_tile = nl.ndarray((TILE_S, D), dtype=v.dtype, buffer=nl.sbuf)
                    nisa.dma_copy(dst=v_tile[0:deep, :], src=v[b, j0 : j0 + deep, kv, 0:D])
                    nisa.nc_matmul(
                        dst=acc[0:height, :], stationary=weights_t[0:deep, 0:height], moving=v_tile[0:deep, :]
                    )
                out = nl.ndarray((TILE_Q, D), dtype=result.dtype, buffer=nl.sbuf)
                nisa.tensor_scalar(
                    dst=out[0:height, :], data=acc[0:height, :], op0=nl.multiply, operand0=inverse[0:height, :]
                )
                nisa.dma_copy(dst=result[b, h, i0 : i0 + height, 0:D], src=out[0:height, :])
    return result
