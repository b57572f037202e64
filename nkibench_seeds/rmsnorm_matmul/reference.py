"""rmsnorm(x) @ w on standard normal float32 inputs, without epsilon or gain."""

import numpy as np

M = 4096
K = 1024
N = 2048


def get_inputs():
    x = np.random.normal(size=(M, K)).astype(np.float32)
    w = np.random.normal(size=(K, N)).astype(np.float32)
    return [x, w]


def forward(x, w):
    return x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True)) @ w


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
