"""lhs^T @ rhs, float32 outside; the products may be of bfloat16."""

import numpy as np

K = 1024
M = 1024
N = 2048

PRESETS = {"small": {"K": 256, "M": 256, "N": 512}}
TOLERANCE = 1e-2
PRECISION = "bf16-allowed"
WORK = {"matmul_flops": 2 * K * M * N, "vector_ops": K * M + K * N, "hbm_bytes": 4 * (K * M + K * N + M * N)}


def get_inputs():
    return [np.random.normal(size=(K, columns)).astype(np.float32) for columns in (M, N)]


def forward(lhs, rhs):
    return lhs.T @ rhs


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
