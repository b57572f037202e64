"""Small kernels as people write them, in grids: predicted before and after a calibration, and never fitted to."""

from __future__ import annotations

from infra.calibration.kernel import CalibrationKernel, kernel_of

_BLOCKED = '''\
TM, TN, TK = $blocks


@nki.jit
def kernel(x, y):
    """x.T @ y in blocks of TM x 128 rows, TN x 512 columns and TK x 128 of depth; sums wait in SBUF."""
    K, M = x.shape
    N = y.shape[1]
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    for n in range(N // (TN * 512)):
        sums = nl.ndarray((P, M // P, TN * 512), dtype=nl.float32, buffer=nl.sbuf)
        for row in range(M // P):
            nisa.memset(dst=sums[:, row, :], value=0.0)
        for k in range(K // (TK * P)):
            right = nl.ndarray((P, TK, TN * 512), dtype=y.dtype, buffer=nl.sbuf)
            for d in range(TK):
                nisa.dma_copy(
                    dst=right[:, d, :],
                    src=y[(k * TK + d) * P : (k * TK + d + 1) * P, n * TN * 512 : (n + 1) * TN * 512],
                )
            for m in range(M // (TM * P)):
                left = nl.ndarray((P, TK, TM * P), dtype=x.dtype, buffer=nl.sbuf)
                for d in range(TK):
                    nisa.dma_copy(
                        dst=left[:, d, :],
                        src=x[(k * TK + d) * P : (k * TK + d + 1) * P, m * TM * P : (m + 1) * TM * P],
                    )
                for column in range(TN):
                    for row in range(TM):
                        part = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
                        for d in range(TK):
                            nisa.nc_matmul(
                                dst=part, stationary=left[:, d, row * P : (row + 1) * P],
                                moving=right[:, d, column * 512 : (column + 1) * 512],
                            )
                        total = sums[:, m * TM + row, column * 512 : (column + 1) * 512]
                        nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
        for row in range(M // P):
            nisa.dma_copy(
                dst=out[row * P : (row + 1) * P, n * TN * 512 : (n + 1) * TN * 512], src=sums[:, row, :]
            )
    return out
'''


def _blocked(row_tiles: int, column_tiles: int, depth_tiles: int) -> CalibrationKernel:
    blocks = (row_tiles, column_tiles, depth_tiles)
    return kernel_of(
        "matmul " + "x".join(map(str, blocks)), "A matmul in blocks, float32", _BLOCKED,
        shapes=((1024, 512), (1024, 2048)), result="return x.T @ y", blocks=blocks, held_out="matmul",
    )  # fmt: skip


_STREAM = '''\
@nki.jit
def kernel(x, y):
    """relu(x) * y + x, $columns columns at a time."""
    rows, width = x.shape
    out = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(width // $columns):
        first = nl.ndarray((P, $columns), dtype=x.dtype, buffer=nl.sbuf)
        second = nl.ndarray((P, $columns), dtype=y.dtype, buffer=nl.sbuf)
        product = nl.ndarray((P, $columns), dtype=x.dtype, buffer=nl.sbuf)
        total = nl.ndarray((P, $columns), dtype=x.dtype, buffer=nl.sbuf)
        positive = nl.ndarray((P, $columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=first, src=x[:, i * $columns : (i + 1) * $columns])
        nisa.dma_copy(dst=second, src=y[:, i * $columns : (i + 1) * $columns])
        nisa.activation(dst=positive, op=nl.relu, data=first)
        nisa.tensor_tensor(dst=product, data1=positive, data2=second, op=nl.multiply)
        nisa.tensor_tensor(dst=total, data1=product, data2=first, op=nl.add)
        nisa.dma_copy(dst=out[:, i * $columns : (i + 1) * $columns], src=total)
    return out
'''


def _stream(columns: int) -> CalibrationKernel:
    return kernel_of(
        f"stream {columns}", "Elementwise, from HBM and back", _STREAM, shapes=((128, 16384), (128, 16384)),
        result="return np.maximum(x, 0) * y + x", columns=columns, held_out="stream",
    )  # fmt: skip


_SOFTMAX = '''\
@nki.jit
def kernel(x):
    """Softmax of each row."""
    rows, width = x.shape
    out = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(rows // P):
        tile = nl.ndarray((P, width), dtype=x.dtype, buffer=nl.sbuf)
        largest = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        weights = nl.ndarray((P, width), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        share = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        result = nl.ndarray((P, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i * P : (i + 1) * P, :])
        nisa.tensor_reduce(dst=largest, op=nl.maximum, data=tile, axis=1, negate=True)
        nisa.activation(dst=weights, op=nl.exp, data=tile, bias=largest)
        nisa.tensor_reduce(dst=total, op=nl.add, data=weights, axis=1)
        nisa.reciprocal(dst=share, data=total)
        nisa.tensor_scalar(dst=result, data=weights, op0=nl.multiply, operand0=share)
        nisa.dma_copy(dst=out[i * P : (i + 1) * P, :], src=result)
    return out
'''

SOFTMAX = kernel_of(
    "softmax", "Softmax of rows of 1,024", _SOFTMAX, shapes=((1024, 1024),),
    result="weights = np.exp(x - x.max(axis=1, keepdims=True))\nreturn weights / weights.sum(axis=1, keepdims=True)",
    held_out="softmax",
)  # fmt: skip

_TURNED = '''\
@nki.jit
def kernel(x, y):
    """(x * 2) @ y for y of 128 rows: each tile of x is turned on Tensor first."""
    rows = x.shape[0]
    width = y.shape[1]
    out = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.shared_hbm)
    moving = nl.ndarray((P, width), dtype=y.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=moving, src=y)
    for i in range(rows // P):
        tile = nl.ndarray((P, P), dtype=x.dtype, buffer=nl.sbuf)
        turned = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
        stationary = nl.ndarray((P, P), dtype=x.dtype, buffer=nl.sbuf)
        done = nl.ndarray((P, width), dtype=nl.float32, buffer=nl.psum)
        result = nl.ndarray((P, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i * P : (i + 1) * P, :])
        nisa.nc_transpose(dst=turned, data=tile)
        nisa.activation(dst=stationary, op=nl.copy, data=turned, scale=2.0)
        nisa.nc_matmul(dst=done, stationary=stationary, moving=moving)
        nisa.tensor_copy(dst=result, src=done)
        nisa.dma_copy(dst=out[i * P : (i + 1) * P, :], src=result)
    return out
'''

TURNED = kernel_of(
    "turned matmul", "Transposes and products in turn", _TURNED, shapes=((2048, 128), (128, 512)),
    result="return 2 * x @ y", held_out="transposed matmul",
)  # fmt: skip

HELD_OUT_KERNELS = (
    _blocked(2, 2, 4), _stream(1024), SOFTMAX, TURNED, _blocked(1, 1, 1), _blocked(4, 4, 8), _stream(256),
)  # fmt: skip
"""What tells most first: one of each grid, then the rest of them."""
