"""Softmax of every row, float32, into a given array."""

import numpy as np

M = 1024
N = 2048

PRESETS = {"small": {"M": 256, "N": 512}}
WORK = {"matmul_flops": 0, "vector_ops": 5 * M * N, "hbm_bytes": 8 * M * N}


def get_inputs():
    return [np.random.normal(size=(M, N)).astype(np.float32)]


def forward(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def transform_to_nki_inputs(inputs):
    return [*inputs, np.zeros((M, N), np.float32)]
