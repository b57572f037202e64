"""Rows written into a buffer of several for each sequence, at given sequences and places."""

import numpy as np

B = 64
S = 8
N = 4096
K = 32

PRESETS = {"small": {"B": 8, "K": 4}}
DOMAINS = {"sequences": "fixed", "places": (0, S - 1)}
WORK = {"matmul_flops": 0, "vector_ops": 0, "hbm_bytes": 8 * K * N}


def get_inputs():
    buffer, rows = (np.random.normal(size=shape).astype(np.float32) for shape in ((B, S, N), (K, N)))
    return [buffer, rows, np.arange(K, dtype=np.int32), np.random.randint(0, S, K).astype(np.int32)]


def forward(buffer, rows, sequences, places):
    buffer = buffer.copy()
    buffer[sequences, places] = rows
    return buffer
