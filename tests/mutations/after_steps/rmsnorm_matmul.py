"""result = rmsnorm(x) @ w, float32, without epsilon or gain; x is [M, K], w is [K, N].

Rows are normalised 128 at a time in their natural layout; then one output tile at a time, both
operand tiles are prepared where they are used: the rows are turned, the weights loaded.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128
TILE_K = 128
TILE_N = 128

TUNABLES = {"TILE_N": (128, 256, 512)}


@nki.jit
def kernel(x, w):
    M, K = x.shape
    K_w, N = w.shape
    assert K_w == K, "x and w must agree on K"
    assert M % TILE_M == 0, "M must be a multiple of TILE_M"
    assert K % TILE_K == 0, "K must be a multiple of TILE_K"
    assert N % TILE_N == 0, "N must be a multiple of TILE_N"
    result = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)

    # Once: the same for every m.
    w_tiles = []
    for n in range(N // TILE_N):
        w_tiles_n = []
        for k in range(K // TILE_K):
            w_tile = nl.ndarray((TILE_K, TILE_N), dtype=w.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=w_tile, src=w[k * TILE_K : (k + 1) * TILE_K, n * TILE_N : (n + 1) * TILE_N])
            w_tiles_n.append(w_tile)
        w_tiles.append(w_tiles_n)

    for m in range(M // TILE_M):
        x_tile = nl.ndarray((TILE_M, K), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_tile, src=x[m * TILE_M : (m + 1) * TILE_M, 0:K])
        squares = nl.ndarray((TILE_M, K), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(
            dst=squares,
            op=nl.square,
            data=x_tile,
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        inverse_rms = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=inverse_rms, op=nl.rsqrt, data=total, scale=1.0 / K)
        normed = nl.ndarray((TILE_M, K), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=normed, data=x_tile, op0=nl.multiply, operand0=inverse_rms, engine=nisa.engine.scalar)

        # Once: the same for every n.
        normed_t_tiles = []
        for k in range(K // TILE_K):
            turned = nl.ndarray((TILE_K, TILE_M), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=normed[:, k * TILE_K : (k + 1) * TILE_K])
            normed_t = nl.ndarray((TILE_K, TILE_M), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=normed_t, src=turned)
            normed_t_tiles.append(normed_t)

        for n in range(N // TILE_N):
            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            for k in range(K // TILE_K):
                nisa.nc_matmul(dst=acc, stationary=normed_t_tiles[k], moving=w_tiles[n][k])
            out = nl.ndarray((TILE_M, TILE_N), dtype=result.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out, src=acc)
            nisa.dma_copy(dst=result[m * TILE_M : (m + 1) * TILE_M, n * TILE_N : (n + 1) * TILE_N], src=out)
    return result
