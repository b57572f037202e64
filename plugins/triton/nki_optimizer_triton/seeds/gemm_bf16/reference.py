"""A product of two bfloat16 matrices, rounded to bfloat16."""

import ml_dtypes
import numpy as np

M = 4096
N = 4096
K = 4096


def get_inputs():
    a = np.random.normal(size=(M, K)).astype(ml_dtypes.bfloat16)
    b = np.random.normal(size=(K, N)).astype(ml_dtypes.bfloat16)
    return [a, b]


def forward(a, b):
    return a @ b
