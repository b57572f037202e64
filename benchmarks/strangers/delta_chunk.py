"""A chunk of 128 steps of the gated delta rule: its outputs, and the state after it."""

import numpy as np

D = 128

TOLERANCE = 1e-4
WORK = {"matmul_flops": 18 * D * D * D, "vector_ops": 10 * D * D, "hbm_bytes": 4 * (6 * D * D + 2 * D)}


def get_inputs():
    q, k, v, state = (np.random.normal(size=(D, D)).astype(np.float32) for _ in range(4))
    write = np.random.random((D, 1)).astype(np.float32)
    decay = -np.cumsum(np.random.random((D, 1)), 0).astype(np.float32) / 16
    return [q / np.float32(D), k / np.float32(D**0.5), v, write, decay, state]


def forward(q, k, v, write, decay, state):
    decays = np.tril(np.exp(np.minimum(decay - decay.T, 0)))
    earlier = write * (k @ k.T) * np.tril(decays, -1)
    new = v * write - k * write * np.exp(decay) @ state
    for t in range(1, len(q)):
        new[t] -= earlier[t, :t] @ new[:t]
    last = decay[-1:]
    after = state * np.exp(last) + (k * np.exp(last - decay)).T @ new
    return q * np.exp(decay) @ state + q @ k.T * decays @ new, after


def transform_to_nki_inputs(inputs):
    q, k, v, write, decay, state = inputs
    ones = np.ones((D, D), np.float32)
    masks = (np.tril(ones, -1), np.eye(D, dtype=np.float32), np.tril(ones))
    return [q, k, v, write * ones, decay * ones, decay[-1:] * ones, state, *masks]
