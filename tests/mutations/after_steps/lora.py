"""result = x @ w + (x @ a) @ b, float32; x is [M, K], w is [K, N], a is [K, R], b is [R, N], R at most 128.

128 rows at a time: first their low-rank image x @ a, then every output tile from both products.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128
TILE_K = 128
TILE_N = 128

TUNABLES = {"TILE_N": (128, 256, 512)}


@nki.jit
def kernel(x, w, a, b):
    M, K = x.shape
    K_w, N = w.shape
    K_a, R = a.shape
    assert K_w == K, "x and w must agree on K"
    assert K_a == K, "x and a must agree on K"
    assert R <= 128, "R must fit into the partitions"
    assert M % TILE_M == 0, "M must be a multiple of TILE_M"
    assert K % TILE_K == 0, "K must be a multiple of TILE_K"
    assert N % TILE_N == 0, "N must be a multiple of TILE_N"
    result = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)

    # Once: the same for every m.
    a_tiles = []
    for j in range(K // TILE_K):
        a_tile = nl.ndarray((TILE_K, R), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a_tile, src=a[j * TILE_K : (j + 1) * TILE_K, 0:R])
        a_tiles.append(a_tile)

    for m in range(M // TILE_M):
        # The image comes out turned, [R, TILE_M], when a is the stationary operand.
        image_acc = nl.ndarray((R, TILE_M), dtype=nl.float32, buffer=nl.psum)
        for j in range(K // TILE_K):
            xa_tile = nl.ndarray((TILE_M, TILE_K), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=xa_tile, src=x[m * TILE_M : (m + 1) * TILE_M, j * TILE_K : (j + 1) * TILE_K])
            xa_turned = nl.ndarray((TILE_K, TILE_M), dtype=x.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=xa_turned, data=xa_tile)
            xa_t = nl.ndarray((TILE_K, TILE_M), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=xa_t, src=xa_turned, engine=nisa.engine.scalar)
            nisa.nc_matmul(dst=image_acc, stationary=a_tiles[j], moving=xa_t)
        image = nl.ndarray((R, TILE_M), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=image, src=image_acc)

        for n in range(N // TILE_N):
            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            for k in range(K // TILE_K):
                x_tile = nl.ndarray((TILE_M, TILE_K), dtype=x.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=x_tile, src=x[m * TILE_M : (m + 1) * TILE_M, k * TILE_K : (k + 1) * TILE_K])
                turned = nl.ndarray((TILE_K, TILE_M), dtype=x.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=turned, data=x_tile)
                x_t = nl.ndarray((TILE_K, TILE_M), dtype=x.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=x_t, src=turned)
                w_tile = nl.ndarray((TILE_K, TILE_N), dtype=w.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=w_tile, src=w[k * TILE_K : (k + 1) * TILE_K, n * TILE_N : (n + 1) * TILE_N])
                nisa.nc_matmul(dst=acc, stationary=x_t, moving=w_tile)

            b_tile = nl.ndarray((R, TILE_N), dtype=b.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=b_tile, src=b[0:R, n * TILE_N : (n + 1) * TILE_N])
            low_rank = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=low_rank, stationary=image, moving=b_tile)
            out = nl.ndarray((TILE_M, TILE_N), dtype=result.dtype, buffer=nl.sbuf)
            low_rank_out = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=low_rank_out, src=low_rank, engine=nisa.engine.scalar)
            nisa.tensor_tensor(dst=out, data1=acc, data2=low_rank_out, op=nl.add)
            nisa.dma_copy(dst=result[m * TILE_M : (m + 1) * TILE_M, n * TILE_N : (n + 1) * TILE_N], src=out)
    return result
