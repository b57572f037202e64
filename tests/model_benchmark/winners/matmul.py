"""result = lhs @ rhs, float32; lhs is [M, K], rhs is [K, N].

One output tile at a time: both operand tiles are loaded where they are used, and the lhs tile is
turned on the Tensor engine, which wants the contraction dimension on the partitions.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128
TILE_K = 128
TILE_N = 512

TUNABLES = {"TILE_N": (128, 256, 512)}


@nki.jit
def kernel(lhs, rhs):
    M, K = lhs.shape
    K_rhs, N = rhs.shape
    assert K_rhs == K, "lhs and rhs must agree on K"
    assert M % TILE_M == 0, "M must be a multiple of TILE_M"
    assert K % TILE_K == 0, "K must be a multiple of TILE_K"
    assert N % TILE_N == 0, "N must be a multiple of TILE_N"
    result = nl.ndarray((M, N), dtype=lhs.dtype, buffer=nl.shared_hbm)

    for m in range(M // TILE_M):
        # Once: the same for every n.
        lhs_t_tiles = []
        for k in range(K // TILE_K):
            lhs_t = nl.ndarray((TILE_K, TILE_M), dtype=lhs.dtype, buffer=nl.sbuf)
            nisa.dma_transpose(dst=lhs_t, src=lhs[m * TILE_M : (m + 1) * TILE_M, k * TILE_K : (k + 1) * TILE_K])
            lhs_t_tiles.append(lhs_t)

        for n in range(N // TILE_N):
            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            assert len(rhs.shape) == 2, "rhs must have 2 dimensions"
            assert (K // TILE_K) % 2 == 0, "2 iterations over k at a time must come out even"
            for k_group in range((K // TILE_K) // 2):
                rhs_tile = nl.ndarray((TILE_K, 2 * TILE_N), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(
                    dst=rhs_tile,
                    src=rhs.ap(
                        pattern=[[rhs.shape[1], TILE_K], [TILE_K * rhs.shape[1], 2], [1, TILE_N]],
                        offset=2 * TILE_K * k_group * rhs.shape[1] + TILE_N * n,
                    ),
                )
                for i in range(2):
                    k = 2 * k_group + i
                    nisa.nc_matmul(
                        dst=acc, stationary=lhs_t_tiles[k], moving=rhs_tile[0:TILE_K, TILE_N * i : TILE_N * i + TILE_N]
                    )

            out = nl.ndarray((TILE_M, TILE_N), dtype=result.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out, src=acc)
            nisa.dma_copy(dst=result[m * TILE_M : (m + 1) * TILE_M, n * TILE_N : (n + 1) * TILE_N], src=out)
    return result
