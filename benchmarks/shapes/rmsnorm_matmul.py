"""result = rmsnorm(x) @ w, float32, without epsilon or gain; x is [M, K], w is [K, N], with any M and N.

The seed of that name, whose last tiles of rows and of columns are narrower.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128
TILE_K = 128
TILE_N = 512

TUNABLES = {"TILE_N": (128, 256, 512)}


def inverse_rms_of(rows, height, K):
    squares = nl.ndarray((TILE_M, K), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=squares[0:height, :], op=nl.square, data=rows[0:height, :])
    total = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total[0:height, :], op=nl.add, data=squares[0:height, :], axis=1)
    inverse_rms = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=inverse_rms[0:height, :], op=nl.rsqrt, data=total[0:height, :], scale=1.0 / K)
    return inverse_rms


@nki.jit
def kernel(x, w):
    M, K = x.shape
    K_w, N = w.shape
    assert K_w == K, "x and w must agree on K"
    assert K % TILE_K == 0, "K must be a multiple of TILE_K"
    result = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)

    for m in range((M + TILE_M - 1) // TILE_M):
        m0 = m * TILE_M
        height = min(TILE_M, M - m0)
        x_tile = nl.ndarray((TILE_M, K), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_tile[0:height, :], src=x[m0 : m0 + height, 0:K])
        inverse_rms = inverse_rms_of(x_tile, height, K)
        normed = nl.ndarray((TILE_M, K), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=normed[0:height, :], data=x_tile[0:height, :], op0=nl.multiply, operand0=inverse_rms[0:height, :]
        )

        for n in range((N + TILE_N - 1) // TILE_N):
            n0 = n * TILE_N
            width = min(TILE_N, N - n0)
            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            for k in range(K // TILE_K):
                turned = nl.ndarray((TILE_K, TILE_M), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_transpose(dst=turned[:, 0:height], data=normed[0:height, k * TILE_K : (k + 1) * TILE_K])
                normed_t = nl.ndarray((TILE_K, TILE_M), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_copy(dst=normed_t[:, 0:height], src=turned[:, 0:height])
                w_tile = nl.ndarray((TILE_K, TILE_N), dtype=w.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=w_tile[:, 0:width], src=w[k * TILE_K : (k + 1) * TILE_K, n0 : n0 + width])
                nisa.nc_matmul(dst=acc[0:height, 0:width], stationary=normed_t[:, 0:height], moving=w_tile[:, 0:width])
            out = nl.ndarray((TILE_M, TILE_N), dtype=result.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out[0:height, 0:width], src=acc[0:height, 0:width])
            nisa.dma_copy(dst=result[m0 : m0 + height, n0 : n0 + width], src=out[0:height, 0:width])
    return result
