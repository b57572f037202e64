"""The weighted sum of eight experts' products of a row and a matrix, in bfloat16, summed in float32."""

import ml_dtypes
import numpy as np

E = 8
K = 192
N = 2048

TOLERANCE = 2e-2
PRECISION = "bf16-allowed"
WORK = {"matmul_flops": 2 * E * K * N, "vector_ops": 2 * E * N, "hbm_bytes": 2 * (E * K * (N + 1) + E + N)}


def get_inputs():
    arrays = [np.random.normal(size=shape) for shape in ((E, 1, K), (E, K, N))]
    arrays.append(np.random.dirichlet(np.ones(E))[:, None])
    return [array.astype(ml_dtypes.bfloat16) for array in arrays]


def forward(rows, matrices, weights):
    return (weights[..., None] * (rows @ matrices)).sum(0)
