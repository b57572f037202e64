"""A square matrix times a vector, float32."""

import numpy as np

N = 128

PRESETS = {"small": {"N": 64}}
WORK = {"matmul_flops": 0, "vector_ops": 2 * N * N, "hbm_bytes": 4 * N * N + 8 * N}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((N, N), (N, 1))]


def forward(a, v):
    return a @ v
