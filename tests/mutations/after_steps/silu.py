"""result = x * sigmoid(x), elementwise, float32; x is [M, N]: load a tile, one activation, store it."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128
TILE_N = 1024

TUNABLES = {"TILE_N": (512, 1024, 1792, 3584, 7168)}


@nki.jit
def kernel(x):
    M, N = x.shape
    assert M % TILE_M == 0, "M must be a multiple of TILE_M"
    assert N % TILE_N == 0, "N must be a multiple of TILE_N"
    result = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)

    for m in range(M // TILE_M):
        for n in range(N // TILE_N):
            tile = nl.ndarray((TILE_M, TILE_N), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[m * TILE_M : (m + 1) * TILE_M, n * TILE_N : (n + 1) * TILE_N])
            out = nl.ndarray((TILE_M, TILE_N), dtype=result.dtype, buffer=nl.sbuf)
            nisa.activation(dst=out, op=nl.silu, data=tile)
            nisa.dma_copy(dst=result[m * TILE_M : (m + 1) * TILE_M, n * TILE_N : (n + 1) * TILE_N], src=out)
    return result
