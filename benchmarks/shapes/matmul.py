"""result = lhs @ rhs, float32; lhs is [M, K], rhs is [K, N], and neither M nor N need be a multiple of a tile.

The seed of that name, whose last tiles of rows and of columns are narrower.
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
    assert K % TILE_K == 0, "K must be a multiple of TILE_K"
    result = nl.ndarray((M, N), dtype=lhs.dtype, buffer=nl.shared_hbm)

    for m in range((M + TILE_M - 1) // TILE_M):
        m0 = m * TILE_M
        height = min(TILE_M, M - m0)
        for n in range((N + TILE_N - 1) // TILE_N):
            n0 = n * TILE_N
            width = min(TILE_N, N - n0)
            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            for k in range(K // TILE_K):
                lhs_tile = nl.ndarray((TILE_M, TILE_K), dtype=lhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=lhs_tile[0:height, :], src=lhs[m0 : m0 + height, k * TILE_K : (k + 1) * TILE_K])
                turned = nl.ndarray((TILE_K, TILE_M), dtype=lhs.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=turned[:, 0:height], data=lhs_tile[0:height, :])
                lhs_t = nl.ndarray((TILE_K, TILE_M), dtype=lhs.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=lhs_t[:, 0:height], src=turned[:, 0:height])

                rhs_tile = nl.ndarray((TILE_K, TILE_N), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=rhs_tile[:, 0:width], src=rhs[k * TILE_K : (k + 1) * TILE_K, n0 : n0 + width])
                nisa.nc_matmul(dst=acc[0:height, 0:width], stationary=lhs_t[:, 0:height], moving=rhs_tile[:, 0:width])

            out = nl.ndarray((TILE_M, TILE_N), dtype=result.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out[0:height, 0:width], src=acc[0:height, 0:width])
            nisa.dma_copy(dst=result[m0 : m0 + height, n0 : n0 + width], src=out[0:height, 0:width])
    return result
