"""The gate of an MLP: silu of the first half of each row, times its second half."""

import numpy as np

M = 4096
N = 11008


def get_inputs():
    return [np.random.normal(size=(M, 2 * N)).astype(np.float32)]


def forward(x):
    gate, up = x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]
    decay = np.exp(-np.abs(gate))  # cannot overflow
    return np.where(gate >= 0, gate, gate * decay) / (1 + decay) * up
