"""lhs.T @ rhs for standard normal float32 matrices; N is 21.375 tiles of 512."""

import numpy as np

M = 4096
K = 2048
N = 10944


def get_inputs():
    lhs = np.random.normal(size=(K, M)).astype(np.float32)
    rhs = np.random.normal(size=(K, N)).astype(np.float32)
    return [lhs, rhs]


def forward(lhs, rhs):
    return lhs.T @ rhs


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
