"""One step of the gated delta rule for each of many heads: its output, and the new state."""

import numpy as np

H = 16
D = 128

PRESETS = {"small": {"H": 2}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 4 * H * D * D, "vector_ops": 3 * H * D * D, "hbm_bytes": 4 * H * (2 * D * D + 4 * D + 2)}


def get_inputs():
    q, k, v = (np.random.normal(size=(H, D)).astype(np.float32) for _ in range(3))
    decay = -np.abs(np.random.normal(size=(H, 1))).astype(np.float32)
    write = np.random.random((H, 1)).astype(np.float32)
    state = np.random.normal(size=(H * D, D)).astype(np.float32)
    return [q, k / np.float32(D**0.5), v, decay, write, state]


def forward(q, k, v, decay, write, state):
    state = state.reshape(k.shape[0], k.shape[1], -1) * np.exp(decay)[..., None]
    delta = (v - np.einsum("hij,hi->hj", state, k)) * write
    state = state + k[:, :, None] * delta[:, None]
    return np.einsum("hij,hi->hj", state, q), state.reshape(-1, v.shape[1])
