"""Gated delta rule, token by token: a state decays, forgets what its key holds, takes the value, and is queried."""

import numpy as np

L = 64
D = 128

PRESETS = {"small": {"L": 8}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 6 * L * D * D, "vector_ops": 2 * L * D * D, "hbm_bytes": 4 * (4 * L * D + 2 * L)}


def get_inputs():
    q, k, v = (np.random.normal(scale=0.1, size=(L, D)).astype(np.float32) for _ in range(3))
    decay = -np.abs(np.random.normal(size=(L, 1))).astype(np.float32)
    gate = np.random.uniform(size=(L, 1)).astype(np.float32)
    return [q, k, v, decay, gate]


def forward(q, k, v, decay, gate):
    state, out = np.zeros((k.shape[1], v.shape[1])), np.zeros(v.shape)
    for t in range(len(q)):
        state = state * np.exp(decay[t])
        state = state + np.outer(k[t], (v[t] - k[t] @ state) * gate[t])
        out[t] = q[t] @ state
    return out


def transform_to_nki_inputs(inputs):
    q, k, v, decay, gate = inputs
    return [q, k, v, np.repeat(decay, q.shape[1], axis=1), np.repeat(gate, q.shape[1], axis=1)]


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
