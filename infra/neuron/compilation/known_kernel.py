"""A kernel that is known to be right: what cannot compile or run it is not to blame on a candidate. Shipped."""

from __future__ import annotations

from accelopt_core.toolchain import TensorArgument

KNOWN_ARGUMENTS = (TensorArgument((512, 256), "float32"), TensorArgument((512, 512), "float32"))

KNOWN_KERNEL = '''\
"""result = lhs_t.T @ rhs in float32: every engine that a matmul needs, one tile at a time."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(lhs_t, rhs):
    K, M = lhs_t.shape
    N = rhs.shape[1]
    result = nl.ndarray((M, N), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(M // 128):
        acc = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.psum)
        for k in range(K // 128):
            stationary = nl.ndarray((128, 128), dtype=lhs_t.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=stationary, src=lhs_t[k * 128 : (k + 1) * 128, m * 128 : (m + 1) * 128])
            moving = nl.ndarray((128, N), dtype=rhs.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=moving, src=rhs[k * 128 : (k + 1) * 128, 0:N])
            nisa.nc_matmul(dst=acc, stationary=stationary, moving=moving)
        out = nl.ndarray((128, N), dtype=result.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=acc)
        nisa.dma_copy(dst=result[m * 128 : (m + 1) * 128, 0:N], src=out)
    return result
'''
