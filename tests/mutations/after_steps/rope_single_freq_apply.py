"""Rotary embedding applied to pairs (row d, row d + D/2), float32; x is [D, T], cos and sin are [D/2, T], D = 128.

The two halves are loaded apart, because the operands of one instruction must start at the same partition.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_T = 512

TUNABLES = {"TILE_T": (512, 1024, 2048, 4096)}


@nki.jit
def kernel(x, cos, sin):
    D, T = x.shape
    half = D // 2
    assert D == 128, "x must have 128 rows"
    assert T % TILE_T == 0, "T must be a multiple of TILE_T"
    result = nl.ndarray((D, T), dtype=x.dtype, buffer=nl.shared_hbm)

    assert (T // TILE_T) % 2 == 0, "two tiles at a time: their number must be even"
    for t in range((T // TILE_T) // 2):
        low = nl.ndarray((2 * half, TILE_T), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=low[0:half, 0:TILE_T], src=x[0:half, (2 * t) * TILE_T : ((2 * t) + 1) * TILE_T])
        nisa.dma_copy(
            dst=low[half : 2 * half, 0:TILE_T], src=x[0:half, (2 * t + 1) * TILE_T : ((2 * t + 1) + 1) * TILE_T]
        )
        high = nl.ndarray((2 * half, TILE_T), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=high[0:half, 0:TILE_T], src=x[half:D, (2 * t) * TILE_T : ((2 * t) + 1) * TILE_T])
        nisa.dma_copy(
            dst=high[half : 2 * half, 0:TILE_T], src=x[half:D, (2 * t + 1) * TILE_T : ((2 * t + 1) + 1) * TILE_T]
        )
        cos_tile = nl.ndarray((2 * half, TILE_T), dtype=cos.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=cos_tile[0:half, 0:TILE_T], src=cos[0:half, (2 * t) * TILE_T : ((2 * t) + 1) * TILE_T])
        nisa.dma_copy(
            dst=cos_tile[half : 2 * half, 0:TILE_T], src=cos[0:half, (2 * t + 1) * TILE_T : ((2 * t + 1) + 1) * TILE_T]
        )
        sin_tile = nl.ndarray((2 * half, TILE_T), dtype=sin.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=sin_tile[0:half, 0:TILE_T], src=sin[0:half, (2 * t) * TILE_T : ((2 * t) + 1) * TILE_T])
        nisa.dma_copy(
            dst=sin_tile[half : 2 * half, 0:TILE_T], src=sin[0:half, (2 * t + 1) * TILE_T : ((2 * t + 1) + 1) * TILE_T]
        )

        low_cos = nl.ndarray((2 * half, TILE_T), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=low_cos, data1=low, data2=cos_tile, op=nl.multiply, engine=nisa.engine.gpsimd)
        high_sin = nl.ndarray((2 * half, TILE_T), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=high_sin, data1=high, data2=sin_tile, op=nl.multiply)
        out_low = nl.ndarray((2 * half, TILE_T), dtype=result.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=out_low, data1=low_cos, data2=high_sin, op=nl.subtract)
        nisa.dma_copy(dst=result[0:half, (2 * t) * TILE_T : ((2 * t) + 1) * TILE_T], src=out_low[0:half, 0:TILE_T])

        low_sin = nl.ndarray((2 * half, TILE_T), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=low_sin, data1=low, data2=sin_tile, op=nl.multiply)
        high_cos = nl.ndarray((2 * half, TILE_T), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=high_cos, data1=high, data2=cos_tile, op=nl.multiply)
        out_high = nl.ndarray((2 * half, TILE_T), dtype=result.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=out_high, data1=low_sin, data2=high_cos, op=nl.add)
        nisa.dma_copy(dst=result[half:D, (2 * t) * TILE_T : ((2 * t) + 1) * TILE_T], src=out_high[0:half, 0:TILE_T])
        nisa.dma_copy(
            dst=result[0:half, (2 * t + 1) * TILE_T : ((2 * t + 1) + 1) * TILE_T],
            src=out_low[half : 2 * half, 0:TILE_T],
        )
        nisa.dma_copy(
            dst=result[half:D, (2 * t + 1) * TILE_T : ((2 * t + 1) + 1) * TILE_T],
            src=out_high[half : 2 * half, 0:TILE_T],
        )
    return result
