"""The eight largest values of each row of a standard normal float32 matrix, largest first."""

import numpy as np

M = 4096
N = 8192


def get_inputs():
    return [np.random.normal(size=(M, N)).astype(np.float32)]


def forward(x):
    return -np.sort(-np.partition(x, x.shape[1] - 8, axis=-1)[:, -8:], axis=-1)
