"""Rows of a table, one for each of several indices, bfloat16."""

import ml_dtypes
import numpy as np

V = 8192
F = 2048
P = 128

PRESETS = {"small": {"V": 1024, "F": 512, "P": 64}}
DOMAINS = {"indices": (0, V - 1)}
WORK = {"matmul_flops": 0, "vector_ops": 0, "hbm_bytes": 4 * P * F + 4 * P}


def get_inputs():
    return [np.random.normal(size=(V, F)).astype(ml_dtypes.bfloat16), np.random.randint(0, V, (P, 1)).astype(np.uint32)]


def forward(table, indices):
    return table[indices[:, 0]]


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).astype(np.float32)]
