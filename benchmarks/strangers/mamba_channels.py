"""Mamba's selective scan of one sequence: states of every channel decay, take their input and are summed, float32."""

import numpy as np

C = 256
M = 1024
S = 16

PRESETS = {"small": {"C": 128, "M": 512, "S": 4}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 0, "vector_ops": 6 * C * M * S, "hbm_bytes": 4 * (3 * C * M + C * S + 2 * S * M)}


def get_inputs():
    delta, u = np.random.uniform(0, 0.1, (C, M)), np.random.normal(size=(C, M))
    a, b, c = -np.random.uniform(0.5, 1.5, (C, S)), np.random.normal(size=(S, M)), np.random.normal(size=(S, M))
    return [part.astype(np.float32) for part in (delta, u, a, b, c)]


def forward(delta, u, a, b, c):
    state, out = np.zeros(a.shape), np.zeros(delta.shape)
    for t in range(delta.shape[1]):
        state = np.exp(delta[:, t, None] * a) * state + (delta[:, t] * u[:, t])[:, None] * b[:, t]
        out[:, t] = state @ c[:, t]
    return out
