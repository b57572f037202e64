"""x @ w + (x @ a) @ b on standard normal float32 inputs; the second product has rank R."""

import numpy as np

M = 4096
K = 5120
N = 12288
R = 128


def get_inputs():
    x = np.random.normal(size=(M, K)).astype(np.float32)
    w = np.random.normal(size=(K, N)).astype(np.float32)
    a = np.random.normal(size=(K, R)).astype(np.float32)
    b = np.random.normal(size=(R, N)).astype(np.float32)
    return [x, w, a, b]


def forward(x, w, a, b):
    return x @ w + (x @ a) @ b


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
