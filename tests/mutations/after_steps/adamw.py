"""One AdamW step from the first iteration, float32: weight decay, both moments, bias correction; all [M, N].

Elementwise, one tile at a time; the last tile of rows is shorter when M is no multiple of 128.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128
TILE_N = 1024

TUNABLES = {"TILE_N": (512, 1024, 2048)}

LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-2
BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8


@nki.jit
def kernel(theta, g, m, v):
    M, N = theta.shape
    assert N % TILE_N == 0, "N must be a multiple of TILE_N"
    result = nl.ndarray((M, N), dtype=theta.dtype, buffer=nl.shared_hbm)

    for i in range((M + TILE_M - 1) // TILE_M):
        i0 = i * TILE_M
        rows = min(TILE_M, M - i0)
        assert (N // TILE_N) % 2 == 0, "2 iterations over j at a time must come out even"
        for j_wide in range((N // TILE_N) // 2):
            theta_tile_wide = nl.ndarray((rows, 2 * TILE_N), dtype=theta.dtype, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=theta_tile_wide,
                src=theta[i0 : i0 + rows, (2 * j_wide) * TILE_N : (2 * j_wide) * TILE_N + 2 * TILE_N],
            )
            g_tile_wide = nl.ndarray((rows, 2 * TILE_N), dtype=g.dtype, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=g_tile_wide, src=g[i0 : i0 + rows, (2 * j_wide) * TILE_N : (2 * j_wide) * TILE_N + 2 * TILE_N]
            )
            m_tile_wide = nl.ndarray((rows, 2 * TILE_N), dtype=m.dtype, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=m_tile_wide, src=m[i0 : i0 + rows, (2 * j_wide) * TILE_N : (2 * j_wide) * TILE_N + 2 * TILE_N]
            )
            v_tile_wide = nl.ndarray((rows, 2 * TILE_N), dtype=v.dtype, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=v_tile_wide, src=v[i0 : i0 + rows, (2 * j_wide) * TILE_N : (2 * j_wide) * TILE_N + 2 * TILE_N]
            )
            out_wide = nl.ndarray((rows, 2 * TILE_N), dtype=result.dtype, buffer=nl.sbuf)
            for j2 in range(2):
                j = 2 * j_wide + j2
                # First moment: BETA1 * m + (1 - BETA1) * g
                g_part = nl.ndarray((rows, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_scalar(
                    dst=g_part,
                    data=g_tile_wide[0:rows, j2 * TILE_N : (j2 + 1) * TILE_N],
                    op0=nl.multiply,
                    operand0=1.0 - BETA1,
                    engine=nisa.engine.scalar,
                )
                first = nl.ndarray((rows, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
                nisa.scalar_tensor_tensor(
                    dst=first,
                    data=m_tile_wide[0:rows, j2 * TILE_N : (j2 + 1) * TILE_N],
                    op0=nl.multiply,
                    operand0=BETA1,
                    op1=nl.add,
                    operand1=g_part,
                )

                # Second moment: BETA2 * v + (1 - BETA2) * g * g
                g_squared = nl.ndarray((rows, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
                nisa.activation(dst=g_squared, op=nl.square, data=g_tile_wide[0:rows, j2 * TILE_N : (j2 + 1) * TILE_N])
                g_squared_part = nl.ndarray((rows, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_scalar(dst=g_squared_part, data=g_squared, op0=nl.multiply, operand0=1.0 - BETA2)
                second = nl.ndarray((rows, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
                nisa.scalar_tensor_tensor(
                    dst=second,
                    data=v_tile_wide[0:rows, j2 * TILE_N : (j2 + 1) * TILE_N],
                    op0=nl.multiply,
                    operand0=BETA2,
                    op1=nl.add,
                    operand1=g_squared_part,
                )

                # Step: LEARNING_RATE * corrected first / (sqrt(corrected second) + EPSILON)
                root = nl.ndarray((rows, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
                nisa.activation(dst=root, op=nl.sqrt, data=second, scale=1.0 / (1.0 - BETA2))
                denominator = nl.ndarray((rows, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_scalar(dst=denominator, data=root, op0=nl.add, operand0=EPSILON)
                inverse = nl.ndarray((rows, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
                nisa.activation(dst=inverse, op=nl.reciprocal, data=denominator)
                step = nl.ndarray((rows, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_tensor(dst=step, data1=first, data2=inverse, op=nl.multiply)

                decayed = nl.ndarray((rows, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_scalar(
                    dst=decayed,
                    data=theta_tile_wide[0:rows, j2 * TILE_N : (j2 + 1) * TILE_N],
                    op0=nl.multiply,
                    operand0=1.0 - LEARNING_RATE * WEIGHT_DECAY,
                )
                nisa.scalar_tensor_tensor(
                    dst=out_wide[0:rows, j2 * TILE_N : (j2 + 1) * TILE_N],
                    data=step,
                    op0=nl.multiply,
                    operand0=-LEARNING_RATE / (1.0 - BETA1),
                    op1=nl.add,
                    operand1=decayed,
                )
            nisa.dma_copy(
                dst=result[i0 : i0 + rows, (2 * j_wide) * TILE_N : (2 * j_wide) * TILE_N + 2 * TILE_N], src=out_wide
            )
    return result
