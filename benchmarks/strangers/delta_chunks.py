"""Gated delta rule over chunks of 128 tokens from a state that is given: outputs, and the state after them, float32.

Queries and keys are divided by their lengths, queries by the root of their columns as well. Masks are inputs too.
"""

import numpy as np

S = 256
D = 128

PRESETS = {"small": {"S": 128}}
TOLERANCE = 1e-3
WORK = {
    "matmul_flops": 2 * S * D * (4 * 128 + 3 * D),
    "vector_ops": 8 * S * D,
    "hbm_bytes": 4 * (4 * S * D + 2 * S + 5 * D * D),
}


def get_inputs():
    q, k, v = (np.random.normal(size=(S, D)).astype(np.float32) for _ in range(3))
    decay, gate = -0.1 * np.random.random((S, 1)), np.random.random((S, 1))
    return [q, k, v, *(part.astype(np.float32) for part in (decay, gate, np.random.normal(scale=0.1, size=(D, D))))]


def forward(q, k, v, decay, gate, state):
    q, k = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (q, k))
    out = np.zeros(v.shape)
    for t in range(len(q)):
        state = state * np.exp(decay[t])
        state = state + np.outer(k[t], (v[t] - k[t] @ state) * gate[t])
        out[t] = q[t] @ state / D**0.5
    return out, state


def transform_to_nki_inputs(inputs):
    lower = np.tril(np.ones((D, D), np.float32))
    return [*inputs, np.tril(lower, -1), np.eye(D, dtype=np.float32), lower]
