"""Chunk after chunk: base + coefficient @ state, then state = matrix @ state + bias; outputs and the last state."""

import numpy as np

N = 16
D = 128

PRESETS = {"small": {"N": 4}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 4 * N * D * D * D, "vector_ops": 2 * N * D * D, "hbm_bytes": 4 * D * D * (5 * N + 2)}


def get_inputs():
    base, coefficient, matrix, bias = (np.random.normal(size=(N, D, D)).astype(np.float32) for _ in range(4))
    state = np.random.normal(size=(D, D)).astype(np.float32)
    return [base, coefficient, matrix / np.float32(2 * D**0.5), bias, state]


def forward(base, coefficient, matrix, bias, state):
    outputs = []
    for chunk in range(len(base)):
        outputs.append(base[chunk] + coefficient[chunk] @ state)
        state = matrix[chunk] @ state + bias[chunk]
    return np.concatenate(outputs), state
