"""A matrix turned, float32."""

import numpy as np

M = 1024
N = 1024

PRESETS = {"small": {"M": 256, "N": 256}}
WORK = {"matmul_flops": 0, "vector_ops": 0, "hbm_bytes": 8 * M * N}


def get_inputs():
    return [np.random.normal(size=(M, N)).astype(np.float32)]


def forward(x):
    return x.T.copy()


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
