"""Softmax over the rows of sixteen independent products of standard normal float32 matrices."""

import numpy as np

B = 16
M = 4096
K = 64
N = 4096


def get_inputs():
    lhs = np.random.normal(size=(B, M, K)).astype(np.float32)
    rhs = np.random.normal(size=(B, K, N)).astype(np.float32)
    return [lhs, rhs]


def forward(lhs, rhs):
    weights = lhs @ rhs  # gigabytes: what follows is done in place
    weights -= np.max(weights, axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= np.sum(weights, axis=-1, keepdims=True)
    return weights


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
