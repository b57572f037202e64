"""result[b] = softmax(lhs[b] @ rhs[b]) over the last axis, float32; lhs is [B, M, K], rhs is [B, K, N], K <= 128.

128 whole rows of the product are held in SBUF; their maximum is subtracted before the exponential.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128
TILE_N = 128

TUNABLES = {"TILE_N": (128, 256, 512)}


@nki.jit
def kernel(lhs, rhs):
    B, M, K = lhs.shape
    B_rhs, K_rhs, N = rhs.shape
    assert B_rhs == B, "lhs and rhs must agree on B"
    assert K_rhs == K, "lhs and rhs must agree on K"
    assert K <= 128, "K must fit into the partitions"
    assert M % TILE_M == 0, "M must be a multiple of TILE_M"
    assert N % TILE_N == 0, "N must be a multiple of TILE_N"
    result = nl.ndarray((B, M, N), dtype=lhs.dtype, buffer=nl.shared_hbm)

    for b in range(B):
        for m in range(M // TILE_M):
            scores = nl.ndarray((TILE_M, N), dtype=nl.float32, buffer=nl.sbuf)
            # Once: the same for every n.
            lhs_t = nl.ndarray((K, TILE_M), dtype=lhs.dtype, buffer=nl.sbuf)
            nisa.dma_transpose(dst=lhs_t, src=lhs[b, m * TILE_M : (m + 1) * TILE_M, 0:K])

            for n in range(N // TILE_N):
                rhs_tile = nl.ndarray((K, TILE_N), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=rhs_tile, src=rhs[b, 0:K, n * TILE_N : (n + 1) * TILE_N])
                acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=acc, stationary=lhs_t, moving=rhs_tile)
                nisa.tensor_copy(dst=scores[:, n * TILE_N : (n + 1) * TILE_N], src=acc)

            negative_max = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=negative_max, op=nl.maximum, data=scores, axis=1, negate=True)
            weights = nl.ndarray((TILE_M, N), dtype=nl.float32, buffer=nl.sbuf)
            total = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(
                dst=weights,
                op=nl.exp,
                data=scores,
                bias=negative_max,
                reduce_op=nl.add,
                reduce_res=total,
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )
            inverse = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.reciprocal(dst=inverse, data=total)
            out = nl.ndarray((TILE_M, N), dtype=result.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=out, data=weights, op0=nl.multiply, operand0=inverse)
            nisa.dma_copy(dst=result[b, m * TILE_M : (m + 1) * TILE_M, 0:N], src=out)
    return result
