"""Attention without a mask, query heads in groups that share a key-value head, float32.

q is [B, N, QH, D], k and v are [B, N, KH, D], the result is [B, QH, N, D], D at most 128. 128 queries at a
time: their whole row of scores is held in SBUF, its maximum is subtracted before the exponential, and
the sum divides the output instead of the row.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_Q = 128
TILE_V = 128
TILE_S = 512

TUNABLES = {"TILE_S": (128, 256, 512)}


@nki.jit
def kernel(q, k, v):
    B, N, QH, D = q.shape
    B_k, N_k, KH, D_k = k.shape
    assert D <= 128, "D must fit into the partitions"
    assert QH % KH == 0, "query heads must divide into the key heads"
    assert N % TILE_S == 0, "N must be a multiple of TILE_S"
    assert N % TILE_Q == 0, "N must be a multiple of TILE_Q"
    result = nl.ndarray((B, QH, N, D), dtype=q.dtype, buffer=nl.shared_hbm)

    for b in range(B):
        for h in range(QH):
            kv = h // (QH // KH)
            # Once: the same for every i.
            v_tiles = []
            for j in range(N // TILE_V):
                v_tile = nl.ndarray((TILE_V, D), dtype=v.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=v_tile, src=v[b, j * TILE_V : (j + 1) * TILE_V, kv, 0:D])
                v_tiles.append(v_tile)

            assert len(q.shape) == 4, "q must have 4 dimensions"
            assert (N // TILE_Q) % 4 == 0, "4 iterations over i at a time must come out even"
            # Once: the same for every i_group.
            k_tiles = []
            for s in range(N // TILE_S):
                k_tiles_s = []
                assert len(k.shape) == 4, "k must have 4 dimensions"
                assert (TILE_S // 128) % 4 == 0, "4 iterations over r at a time must come out even"
                for r_group in range((TILE_S // 128) // 4):
                    k_tile = nl.ndarray((128, 4 * D), dtype=k.dtype, buffer=nl.sbuf)
                    nisa.dma_copy(
                        dst=k_tile,
                        src=k.ap(
                            pattern=[[k.shape[2] * k.shape[3], 128], [128 * k.shape[2] * k.shape[3], 4], [1, D]],
                            offset=b * k.shape[1] * k.shape[2] * k.shape[3]
                            + 512 * k.shape[2] * k.shape[3] * r_group
                            + TILE_S * k.shape[2] * k.shape[3] * s
                            + k.shape[3] * kv,
                        ),
                    )
                    for i3 in range(4):
                        r = 4 * r_group + i3
                        k_tiles_s.append(k_tile[0:128, D * i3 : D * i3 + D])
                k_tiles.append(k_tiles_s)

            # Once: the same for every i_group.
            k_t_tiles = []
            for s in range(N // TILE_S):
                k_t = nl.ndarray((D, TILE_S), dtype=k.dtype, buffer=nl.sbuf)
                for r in range(TILE_S // 128):
                    k_turned = nl.ndarray((D, 128), dtype=k.dtype, buffer=nl.psum)
                    nisa.nc_transpose(dst=k_turned, data=k_tiles[s][r])
                    nisa.tensor_copy(dst=k_t[:, r * 128 : (r + 1) * 128], src=k_turned)
                k_t_tiles.append(k_t)

            for i_group in range((N // TILE_Q) // 4):
                q_tile = nl.ndarray((TILE_Q, 4 * D), dtype=q.dtype, buffer=nl.sbuf)
                q_turned = nl.ndarray((D, 4 * TILE_Q), dtype=q.dtype, buffer=nl.psum)
                q_t = nl.ndarray((D, 4 * TILE_Q), dtype=nl.float32, buffer=nl.sbuf)

                scores = nl.ndarray((TILE_Q, 4, N), dtype=nl.float32, buffer=nl.sbuf)

                negative_max = nl.ndarray((TILE_Q, 4, 1), dtype=nl.float32, buffer=nl.sbuf)
                weights = nl.ndarray((TILE_Q, 4, N), dtype=nl.float32, buffer=nl.sbuf)
                total = nl.ndarray((TILE_Q, 4), dtype=nl.float32, buffer=nl.sbuf)
                inverse = nl.ndarray((TILE_Q, 4), dtype=nl.float32, buffer=nl.sbuf)
                out = nl.ndarray((TILE_Q, 4 * D), dtype=result.dtype, buffer=nl.sbuf)
                nisa.dma_copy(
                    dst=q_tile,
                    src=q.ap(
                        pattern=[[q.shape[2] * q.shape[3], TILE_Q], [TILE_Q * q.shape[2] * q.shape[3], 4], [1, D]],
                        offset=b * q.shape[1] * q.shape[2] * q.shape[3]
                        + 4 * TILE_Q * i_group * q.shape[2] * q.shape[3]
                        + h * q.shape[3],
                    ),
                )
                for i2 in range(4):
                    i = 4 * i_group + i2
                    nisa.nc_transpose(
                        dst=q_turned[0:D, TILE_Q * i2 : TILE_Q * i2 + TILE_Q],
                        data=q_tile[0:TILE_Q, D * i2 : D * i2 + D],
                    )
                nisa.tensor_scalar(dst=q_t, data=q_turned, op0=nl.multiply, operand0=1.0 / D**0.5)
                assert 4 % 2 == 0, "2 iterations over i2 at a time must come out even"
                for i2_block in range(4 // 2):
                    for s in range(N // TILE_S):
                        for j2 in range(2):
                            i2 = 2 * i2_block + j2
                            product = nl.ndarray((TILE_Q, TILE_S), dtype=nl.float32, buffer=nl.psum)
                            nisa.nc_matmul(
                                dst=product,
                                stationary=q_t[0:D, TILE_Q * i2 : TILE_Q * i2 + TILE_Q],
                                moving=k_t_tiles[s],
                            )
                            nisa.tensor_copy(
                                dst=scores[0:TILE_Q, i2, TILE_S * s : TILE_S * s + TILE_S],
                                src=product,
                                engine=nisa.engine.scalar,
                            )
                nisa.tensor_reduce(dst=negative_max, op=nl.maximum, data=scores, axis=2, negate=True)
                for i2 in range(4):
                    i = 4 * i_group + i2
                    nisa.activation(
                        dst=weights[0:TILE_Q, i2, 0:N],
                        op=nl.exp,
                        data=scores[0:TILE_Q, i2, 0:N],
                        bias=negative_max[0:TILE_Q, i2, 0:1],
                        reduce_op=nl.add,
                        reduce_res=total[0:TILE_Q, i2 : i2 + 1],
                        reduce_cmd=nisa.reduce_cmd.reset_reduce,
                    )
                nisa.reciprocal(dst=inverse, data=total)
                for i2 in range(4):
                    i = 4 * i_group + i2

                    acc = nl.ndarray((TILE_Q, D), dtype=nl.float32, buffer=nl.psum)
                    for j in range(N // TILE_V):
                        weights_turned = nl.ndarray((TILE_V, TILE_Q), dtype=nl.float32, buffer=nl.psum)
                        nisa.nc_transpose(
                            dst=weights_turned, data=weights[0:TILE_Q, i2, TILE_V * j : TILE_V * j + TILE_V]
                        )
                        weights_t = nl.ndarray((TILE_V, TILE_Q), dtype=nl.float32, buffer=nl.sbuf)
                        nisa.tensor_copy(dst=weights_t, src=weights_turned)
                        nisa.nc_matmul(dst=acc, stationary=weights_t, moving=v_tiles[j])
                    nisa.tensor_scalar(
                        dst=out[0:TILE_Q, D * i2 : D * i2 + D],
                        data=acc,
                        op0=nl.multiply,
                        operand0=inverse[0:TILE_Q, i2 : i2 + 1],
                    )
                nisa.dma_copy(
                    dst=result.ap(
                        pattern=[[D, TILE_Q], [D * TILE_Q, 4], [1, D]],
                        offset=D * N * QH * b + D * N * h + 4 * D * TILE_Q * i_group,
                    ),
                    src=out,
                )
    return result
