"""result = lhs.T @ rhs, float32; lhs is [K, M], rhs is [K, N], and N need not be a multiple of the tile.

The contraction dimension lies on the partitions already, so nothing has to be turned. The last column
of tiles is narrower.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128
TILE_K = 128
TILE_N = 128

TUNABLES = {"TILE_N": (128, 256, 512)}


@nki.jit
def kernel(lhs, rhs):
    K, M = lhs.shape
    K_rhs, N = rhs.shape
    assert K_rhs == K, "lhs and rhs must agree on K"
    assert M % TILE_M == 0, "M must be a multiple of TILE_M"
    assert K % TILE_K == 0, "K must be a multiple of TILE_K"
    result = nl.ndarray((M, N), dtype=lhs.dtype, buffer=nl.shared_hbm)

    assert (M // TILE_M) % 2 == 0, "2 iterations over m at a time must come out even"
    for m_block in range((M // TILE_M) // 2):
        # Once: the same for every n.
        lhs_tiles_by_m = []
        for j in range(2):
            m = 2 * m_block + j
            lhs_tiles = []
            lhs_tiles_by_m.append(lhs_tiles)
            for k in range(K // TILE_K):
                lhs_tile = nl.ndarray((TILE_K, TILE_M), dtype=lhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=lhs_tile, src=lhs[k * TILE_K : (k + 1) * TILE_K, m * TILE_M : (m + 1) * TILE_M])
                lhs_tiles.append(lhs_tile)

        for n in range((N + TILE_N - 1) // TILE_N):
            n0 = n * TILE_N
            width = min(TILE_N, N - n0)
            acc_by_m = []
            for j in range(2):
                acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
                acc_by_m.append(acc)
            for k in range(K // TILE_K):
                rhs_tile = nl.ndarray((TILE_K, TILE_N), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=rhs_tile[:, 0:width], src=rhs[k * TILE_K : (k + 1) * TILE_K, n0 : n0 + width])
                for j in range(2):
                    nisa.nc_matmul(
                        dst=acc_by_m[j][:, 0:width], stationary=lhs_tiles_by_m[j][k], moving=rhs_tile[:, 0:width]
                    )

            for j in range(2):
                m2 = 2 * m_block + j
                out = nl.ndarray((TILE_M, TILE_N), dtype=result.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=out[:, 0:width], src=acc_by_m[j][:, 0:width], engine=nisa.engine.scalar)
                nisa.dma_copy(dst=result[m2 * TILE_M : (m2 + 1) * TILE_M, n0 : n0 + width], src=out[:, 0:width])
    return result
