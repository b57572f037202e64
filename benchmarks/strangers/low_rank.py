"""x @ u @ v through a narrow middle, float32 outside; the products may be of bfloat16."""

import numpy as np

M = 1024
N = 512
K = 128
D = 1024

PRESETS = {"small": {"M": 256, "N": 256, "D": 512}}
TOLERANCE = 1e-2
PRECISION = "bf16-allowed"
WORK = {"matmul_flops": 2 * M * K * (N + D), "vector_ops": 0, "hbm_bytes": 4 * (M * N + N * K + K * D + M * D)}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((M, N), (N, K), (K, D))]


def forward(x, u, v):
    return x @ u @ v


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
