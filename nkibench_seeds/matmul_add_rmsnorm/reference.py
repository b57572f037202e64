"""rmsnorm(x @ w + z) * g on standard normal float32 inputs; eps is a plain float argument."""

import numpy as np

M = 4096
K = 2048
N = 2048


def get_inputs():
    x = np.random.normal(size=(M, K)).astype(np.float32)
    w = np.random.normal(size=(K, N)).astype(np.float32)
    eps = 1e-5
    z = np.random.normal(size=(M, N)).astype(np.float32)
    g = np.random.normal(size=(N,)).astype(np.float32)
    return [x, w, eps, z, g]


def forward(x, w, eps, z, g):
    y = x @ w + z
    mean_square = np.mean(np.square(y), axis=-1, keepdims=True)
    return y / np.sqrt(mean_square + np.float32(eps)) * g


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
