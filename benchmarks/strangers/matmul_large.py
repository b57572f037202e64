"""lhs^T @ rhs of two square matrices of 2048 in bfloat16, summed in float32."""

import ml_dtypes
import numpy as np

N = 2048

TOLERANCE = 1e-2
PRECISION = "bf16-allowed"
WORK = {"matmul_flops": 2 * N * N * N, "vector_ops": 0, "hbm_bytes": 6 * N * N}


def get_inputs():
    return [np.random.normal(size=(N, N)).astype(ml_dtypes.bfloat16) for _ in range(2)]


def forward(lhs, rhs):
    return lhs.T @ rhs


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).astype(np.float32)]
