"""RMSNorm of a standard normal float32 matrix."""

import numpy as np

M = 8192
N = 4096


def get_inputs():
    x = np.random.normal(size=(M, N)).astype(np.float32)
    weight = np.random.normal(size=(N,)).astype(np.float32)
    return [x, weight]


def forward(x, weight):
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    return x / np.sqrt(mean + 1e-6) * weight
