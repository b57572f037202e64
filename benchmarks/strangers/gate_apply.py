"""A complex matrix, real part first, times the columns of a complex state, float32."""

import numpy as np

D = 128
N = 8192

PRESETS = {"small": {"D": 64, "N": 1024}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 8 * D * D * N, "vector_ops": 0, "hbm_bytes": 8 * (D * D + 2 * D * N)}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((2, D, D), (2, D, N))]


def forward(gate, state):
    real = gate[0] @ state[0] - gate[1] @ state[1]
    return np.stack([real, gate[0] @ state[1] + gate[1] @ state[0]])
