"""result = rmsnorm(x @ w + z) * g, float32; x is [M, K], w is [K, N], z is [M, N], g is [N].

The product is made one tile at a time; 128 whole rows of it are held in SBUF and normalised there.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128
TILE_K = 128
TILE_N = 512

TUNABLES = {"TILE_N": (128, 256, 512)}


@nki.jit
def kernel(x, w, eps, z, g):
    M, K = x.shape
    K_w, N = w.shape
    assert K_w == K, "x and w must agree on K"
    assert M % TILE_M == 0, "M must be a multiple of TILE_M"
    assert K % TILE_K == 0, "K must be a multiple of TILE_K"
    assert N % TILE_N == 0, "N must be a multiple of TILE_N"
    result = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)

    # The gain as one row per partition: a column of ones times the row, on the Tensor engine.
    ones = nl.ndarray((1, TILE_M), dtype=g.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    gain_row = nl.ndarray((1, N), dtype=g.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=gain_row, src=g.reshape((1, N)))
    gain = nl.ndarray((TILE_M, N), dtype=g.dtype, buffer=nl.sbuf)
    for c in range(N // TILE_N):
        spread = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=spread, stationary=ones, moving=gain_row[:, c * TILE_N : (c + 1) * TILE_N])
        nisa.tensor_copy(dst=gain[:, c * TILE_N : (c + 1) * TILE_N], src=spread)
    epsilon = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=epsilon, value=eps)

    for m in range(M // TILE_M):
        y = nl.ndarray((TILE_M, N), dtype=nl.float32, buffer=nl.sbuf)
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
            z_tile = nl.ndarray((TILE_M, TILE_N), dtype=z.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=z_tile, src=z[m * TILE_M : (m + 1) * TILE_M, n * TILE_N : (n + 1) * TILE_N])
            nisa.tensor_tensor(dst=y[:, n * TILE_N : (n + 1) * TILE_N], data1=acc, data2=z_tile, op=nl.add)

        squares = nl.ndarray((TILE_M, N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=squares, op=nl.square, data=y)
        total = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)
        inverse_rms = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=inverse_rms, op=nl.rsqrt, data=total, scale=1.0 / N, bias=epsilon)
        normed = nl.ndarray((TILE_M, N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=normed, data=y, op0=nl.multiply, operand0=inverse_rms)
        out = nl.ndarray((TILE_M, N), dtype=result.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=out, data1=normed, data2=gain, op=nl.multiply)
        nisa.dma_copy(dst=result[m * TILE_M : (m + 1) * TILE_M, 0:N], src=out)
    return result
