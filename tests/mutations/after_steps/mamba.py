"""Selective scan, float32: for every channel and state h = exp(delta * a) * h + delta * u * b, result = sum of c * h.

delta and u are [C, M], a is [C, S], b and c are [S, M]. Channels lie on the partitions, time on the free
axis; the state is carried from one stretch of time to the next.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_C = 128
TILE_T = 128

TUNABLES = {"TILE_T": (128, 256, 512)}


@nki.jit
def kernel(delta, u, a, b, c):
    C, M = delta.shape
    C_a, S = a.shape
    assert C_a == C, "delta and a must agree on C"
    assert C % TILE_C == 0, "C must be a multiple of TILE_C"
    assert M % TILE_T == 0, "M must be a multiple of TILE_T"
    result = nl.ndarray((C, M), dtype=delta.dtype, buffer=nl.shared_hbm)

    # A column of ones times a row puts the row on every partition.
    ones = nl.ndarray((1, TILE_C), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)

    # Once: the same for every i.
    b_row_tiles = []
    for t in range(M // TILE_T):
        b_row_tiles_t = []
        for s in range(S):
            b_row = nl.ndarray((1, TILE_T), dtype=b.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=b_row, src=b[s : s + 1, t * TILE_T : (t + 1) * TILE_T])
            b_row_tiles_t.append(b_row)
        b_row_tiles.append(b_row_tiles_t)

    for i in range(C // TILE_C):
        a_tile = nl.ndarray((TILE_C, S), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a_tile, src=a[i * TILE_C : (i + 1) * TILE_C, 0:S])
        state = nl.ndarray((TILE_C, S), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=state, value=0.0)
        for t in range(M // TILE_T):
            delta_tile = nl.ndarray((TILE_C, TILE_T), dtype=delta.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=delta_tile, src=delta[i * TILE_C : (i + 1) * TILE_C, t * TILE_T : (t + 1) * TILE_T])
            u_tile = nl.ndarray((TILE_C, TILE_T), dtype=u.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=u_tile, src=u[i * TILE_C : (i + 1) * TILE_C, t * TILE_T : (t + 1) * TILE_T])
            delta_u = nl.ndarray((TILE_C, TILE_T), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=delta_u, data1=delta_tile, data2=u_tile, op=nl.multiply, engine=nisa.engine.gpsimd)
            out = nl.ndarray((TILE_C, TILE_T), dtype=result.dtype, buffer=nl.sbuf)
            nisa.memset(dst=out, value=0.0)

            for s in range(S):
                decay = nl.ndarray((TILE_C, TILE_T), dtype=nl.float32, buffer=nl.sbuf)
                nisa.activation(dst=decay, op=nl.exp, data=delta_tile, scale=a_tile[:, s : s + 1])
                b_spread = nl.ndarray((TILE_C, TILE_T), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=b_spread, stationary=ones, moving=b_row_tiles[t][s])
                drive = nl.ndarray((TILE_C, TILE_T), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_tensor(dst=drive, data1=delta_u, data2=b_spread, op=nl.multiply)

                h = nl.ndarray((TILE_C, TILE_T), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_tensor_scan(
                    dst=h, data0=decay, data1=drive, initial=state[:, s : s + 1], op0=nl.multiply, op1=nl.add
                )
                nisa.tensor_copy(dst=state[:, s : s + 1], src=h[:, TILE_T - 1 : TILE_T])

                c_row = nl.ndarray((1, TILE_T), dtype=c.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=c_row, src=c[s : s + 1, t * TILE_T : (t + 1) * TILE_T])
                c_spread = nl.ndarray((TILE_C, TILE_T), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=c_spread, stationary=ones, moving=c_row)
                weighted = nl.ndarray((TILE_C, TILE_T), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_tensor(dst=weighted, data1=h, data2=c_spread, op=nl.multiply)
                nisa.tensor_tensor(dst=out, data1=out, data2=weighted, op=nl.add)
            nisa.dma_copy(dst=result[i * TILE_C : (i + 1) * TILE_C, t * TILE_T : (t + 1) * TILE_T], src=out)
    return result
