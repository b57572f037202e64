"""result = (silu(x @ w_gate) * (x @ w_up)) @ w_down, float32; x is [M, K], w_gate and w_up [K, N], w_down [N, K].

128 rows at a time: both projections up into one row of the hidden layer, held in SBUF, and one down.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128
TILE_K = 128
TILE_N = 128

TUNABLES = {"TILE_N": (128, 256, 512)}


@nki.jit
def kernel(x, w_up, w_down, w_gate):
    M, K = x.shape
    K_up, N = w_up.shape
    assert K_up == K, "x and w_up must agree on K"
    assert M % TILE_M == 0, "M must be a multiple of TILE_M"
    assert K % TILE_N == 0, "K must be a multiple of TILE_N"
    assert N % TILE_N == 0, "N must be a multiple of TILE_N"
    result = nl.ndarray((M, K), dtype=x.dtype, buffer=nl.shared_hbm)

    for m in range(M // TILE_M):
        hidden = nl.ndarray((TILE_M, N), dtype=nl.float32, buffer=nl.sbuf)
        # Once: the same for every n.
        x_t_tiles = []
        for k in range(K // TILE_K):
            x_tile = nl.ndarray((TILE_M, TILE_K), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=x_tile, src=x[m * TILE_M : (m + 1) * TILE_M, k * TILE_K : (k + 1) * TILE_K])
            turned = nl.ndarray((TILE_K, TILE_M), dtype=x.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=x_tile)
            x_t = nl.ndarray((TILE_K, TILE_M), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=x_t, src=turned, engine=nisa.engine.scalar)
            x_t_tiles.append(x_t)

        for n in range(N // TILE_N):
            up = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            gate = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            for k in range(K // TILE_K):
                up_tile = nl.ndarray((TILE_K, TILE_N), dtype=w_up.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=up_tile, src=w_up[k * TILE_K : (k + 1) * TILE_K, n * TILE_N : (n + 1) * TILE_N])
                nisa.nc_matmul(dst=up, stationary=x_t_tiles[k], moving=up_tile)
                gate_tile = nl.ndarray((TILE_K, TILE_N), dtype=w_gate.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=gate_tile, src=w_gate[k * TILE_K : (k + 1) * TILE_K, n * TILE_N : (n + 1) * TILE_N])
                nisa.nc_matmul(dst=gate, stationary=x_t_tiles[k], moving=gate_tile)
            opened = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=opened, op=nl.silu, data=gate)
            up_out = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=up_out, src=up, engine=nisa.engine.scalar)
            nisa.tensor_tensor(dst=hidden[:, n * TILE_N : (n + 1) * TILE_N], data1=opened, data2=up_out, op=nl.multiply)

        # Once: the same for every d.
        hidden_t_tiles = []
        for j in range(N // TILE_K):
            hidden_turned = nl.ndarray((TILE_K, TILE_M), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=hidden_turned, data=hidden[:, j * TILE_K : (j + 1) * TILE_K])
            hidden_t = nl.ndarray((TILE_K, TILE_M), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=hidden_t, src=hidden_turned)
            hidden_t_tiles.append(hidden_t)

        for d in range(K // TILE_N):
            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            for j in range(N // TILE_K):
                down_tile = nl.ndarray((TILE_K, TILE_N), dtype=w_down.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=down_tile, src=w_down[j * TILE_K : (j + 1) * TILE_K, d * TILE_N : (d + 1) * TILE_N])
                nisa.nc_matmul(dst=acc, stationary=hidden_t_tiles[j], moving=down_tile)
            out = nl.ndarray((TILE_M, TILE_N), dtype=result.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out, src=acc)
            nisa.dma_copy(dst=result[m * TILE_M : (m + 1) * TILE_M, d * TILE_N : (d + 1) * TILE_N], src=out)
    return result
