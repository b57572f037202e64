"""A symmetric update of a matrix by two vectors: a - u v' - v u', float32."""

import numpy as np

N = 128

PRESETS = {"small": {"N": 64}}
WORK = {"matmul_flops": 0, "vector_ops": 4 * N * N, "hbm_bytes": 8 * N * N + 8 * N}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((N, N), (N, 1), (N, 1))]


def forward(a, u, v):
    return a - u @ v.T - v @ u.T
