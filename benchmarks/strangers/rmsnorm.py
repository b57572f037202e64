"""Root mean square of every row divided out, then a weight for each column, float32."""

import numpy as np

M = 2048
N = 2048

PRESETS = {"small": {"M": 256, "N": 512}}
WORK = {"matmul_flops": 0, "vector_ops": 5 * M * N, "hbm_bytes": 8 * M * N + 4 * N}
DISTRIBUTIONS_LEFT_OUT = {"zero-rows": "0/0: the problem has no epsilon"}


def get_inputs():
    x = np.random.normal(size=(M, N)).astype(np.float32)
    weight = np.random.normal(size=N).astype(np.float32)
    return [x, weight]


def forward(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True)) * weight


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
