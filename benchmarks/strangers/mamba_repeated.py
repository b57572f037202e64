"""The selective scan of mamba.py, with b and c already repeated for the 128 channels of a tile."""

import numpy as np

C = 256
S = 16
L = 1024

PRESETS = {"small": {"C": 128, "S": 4, "L": 512}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 0, "vector_ops": 8 * C * S * L, "hbm_bytes": 4 * (3 * C * L + C * S + 2 * S * L)}


def get_inputs():
    delta = np.abs(np.random.normal(size=(1, C, L))).astype(np.float32) / np.float32(8)
    u = np.random.normal(size=(1, C, L)).astype(np.float32)
    a = -np.abs(np.random.normal(size=(C, S))).astype(np.float32)
    b, c = (np.random.normal(size=(1, S, L)).astype(np.float32) for _ in range(2))
    return [delta, u, a, b, c]


def forward(delta, u, a, b, c):
    state, y = np.zeros(a.shape), np.zeros(delta.shape)
    for t in range(delta.shape[-1]):
        column = delta[0, :, t, None]
        state = np.exp(column * a) * state + column * b[0, :, t] * u[0, :, t, None]
        y[0, :, t] = state @ c[0, :, t]
    return y


def transform_to_nki_inputs(inputs):
    delta, u, a, b, c = inputs
    return [delta, u, a, np.repeat(b, 128, axis=1), np.repeat(c, 128, axis=1)]


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
