"""result[b] = lhs[b] @ rhs[b], float32; lhs is [B, M, K], rhs is [B, K, N], K at most 128.

One output tile at a time; the whole contraction is one matrix product.
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
            # Once: the same for every n.
            lhs_t = nl.ndarray((K, TILE_M), dtype=lhs.dtype, buffer=nl.sbuf)
            lhs_t_rows = nl.ndarray((TILE_M, K), dtype=lhs.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=lhs_t_rows, src=lhs[b, m * TILE_M : (m + 1) * TILE_M, 0:K])
            lhs_t_turned = nl.ndarray((K, TILE_M), dtype=lhs.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=lhs_t_turned, data=lhs_t_rows)
            nisa.tensor_copy(dst=lhs_t, src=lhs_t_turned)

            for n in range(N // TILE_N):
                rhs_tile = nl.ndarray((K, TILE_N), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=rhs_tile, src=rhs[b, 0:K, n * TILE_N : (n + 1) * TILE_N])
                acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=acc, stationary=lhs_t, moving=rhs_tile)

                out = nl.ndarray((TILE_M, TILE_N), dtype=result.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=out, src=acc)
                nisa.dma_copy(dst=result[b, m * TILE_M : (m + 1) * TILE_M, n * TILE_N : (n + 1) * TILE_N], src=out)
    return result
