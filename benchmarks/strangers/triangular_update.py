"""One product for each channel, result[i, j, d] = sum over k of a[i, k, d] b[j, k, d], in bfloat16."""

import ml_dtypes
import numpy as np

N = 256
D = 8

PRESETS = {"small": {"N": 128, "D": 4}}
TOLERANCE = 1e-2
PRECISION = "bf16-allowed"
WORK = {"matmul_flops": 2 * N * N * N * D, "vector_ops": 0, "hbm_bytes": 6 * N * N * D}


def get_inputs():
    return [np.random.normal(size=(N, N, D)).astype(ml_dtypes.bfloat16) for _ in range(2)]


def forward(a, b):
    return np.einsum("ikd,jkd->ijd", a, b, optimize=True)


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).astype(np.float32).reshape(reference.shape)]
