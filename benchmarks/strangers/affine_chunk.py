"""A chunk of 128 steps of the gated delta rule as affine maps of the state before it, queries and keys normalized.

What its outputs and the state after it are without that state, and what each is of it, float32.
"""

import numpy as np

D = 128

DOMAINS = {"decay": "fixed", "write": "fixed"}
TOLERANCE = 1e-4
DISTRIBUTIONS_LEFT_OUT = {
    "positive": "keys are nearly parallel, and repeated products of what they share keep little",
    "constant-rows": "the same",
    "offset": "the same",
    "offset-rows": "the same",
}
WORK = {"matmul_flops": 16 * D * D * D, "vector_ops": 12 * D * D, "hbm_bytes": 4 * (7 * D * D + 2 * D)}


def get_inputs():
    q, k, v = (np.random.normal(size=(D, D)).astype(np.float32) for _ in range(3))
    decay = -np.random.random((D, 1)).astype(np.float32) / 16
    return [q, k, v, decay, np.random.random((D, 1)).astype(np.float32)]


def forward(q, k, v, decay, write):
    q = q / np.linalg.norm(q, axis=-1, keepdims=True) / D**0.5
    k = k / np.linalg.norm(k, axis=-1, keepdims=True)
    decay = np.cumsum(decay, 0)
    decays = np.tril(np.exp(np.minimum(decay - decay.T, 0)))
    earlier = np.eye(len(q), dtype=k.dtype) + write * (k @ k.T) * np.tril(decays, -1)
    value, key = np.linalg.solve(earlier, v * write), np.linalg.solve(earlier, k * write * np.exp(decay))
    scores, last = q @ k.T * decays, decay[-1:]
    kept = (k * np.exp(last - decay)).T
    state = np.exp(last) * np.eye(k.shape[1], dtype=k.dtype) - kept @ key
    return scores @ value, q * np.exp(decay) - scores @ key, state, kept @ value


def transform_to_nki_inputs(inputs):
    ones = np.ones((D, D), np.float32)
    return [*inputs, np.tril(ones, -1), np.eye(D, dtype=np.float32), np.tril(ones)]
