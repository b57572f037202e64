"""SiLU of a standard normal float32 matrix."""

import numpy as np

M = 4096
N = 7168


def get_inputs():
    return [np.random.normal(size=(M, N)).astype(np.float32)]


def forward(x):
    # exp(-|x|) cannot overflow, so that large inputs give 0 and not NaN.
    decay = np.exp(-np.abs(x))
    return np.where(x >= 0, x, x * decay) / (1 + decay)


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
