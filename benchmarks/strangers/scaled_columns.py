"""A matrix times one factor for each of its columns, float32."""

import numpy as np

M = 1000
N = 2048

PRESETS = {"small": {"M": 200, "N": 512}}
WORK = {"matmul_flops": 0, "vector_ops": M * N, "hbm_bytes": 4 * (2 * M * N + N)}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((M, N), (N,))]


def forward(x, factors):
    return x * factors
