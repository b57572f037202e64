"""A step of AdamW, its tenth or so: weights decay, and move by the mean gradient over the root of its mean square."""

import numpy as np

M = 10944
N = 2048

RATE = 0.01
DECAY = 0.001
BETA_1 = 0.9
BETA_2 = 0.999
EPSILON = 1e-8

DOMAINS = {"square": (0.01, 4)}
WORK = {"matmul_flops": 0, "vector_ops": 8 * M * N, "hbm_bytes": 20 * M * N}


def get_inputs():
    weights, gradient, mean = (np.random.normal(size=(M, N)).astype(np.float32) for _ in range(3))
    return [weights, gradient, mean, np.random.uniform(0.1, 1, size=(M, N)).astype(np.float32)]


def forward(weights, gradient, mean, square):
    mean = BETA_1 * mean + (1 - BETA_1) * gradient
    square = (BETA_2 * square + (1 - BETA_2) * gradient * gradient) / (1 - BETA_2)
    return weights * (1 - RATE * DECAY) - RATE * mean / (np.sqrt(square) + EPSILON)
