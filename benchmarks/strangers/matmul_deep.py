"""lhs^T @ rhs of a left matrix with 256 columns, in bfloat16, summed in float32."""

import ml_dtypes
import numpy as np

K = 2048
M = 256
N = 4096

PRESETS = {"small": {"M": 128}}
TOLERANCE = 1e-2
PRECISION = "bf16-allowed"
WORK = {"matmul_flops": 2 * K * M * N, "vector_ops": 0, "hbm_bytes": 2 * (K * M + K * N + M * N)}


def get_inputs():
    return [np.random.normal(size=(K, columns)).astype(ml_dtypes.bfloat16) for columns in (M, N)]


def forward(lhs, rhs):
    return lhs.T @ rhs


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).astype(np.float32)]
