"""Rotary embedding of queries: the halves of each head are turned by the angle of its position."""

import numpy as np

T = 8192
H = 32
D = 128


def get_inputs():
    x = np.random.normal(size=(T, H, D)).astype(np.float32)
    frequencies = 10000.0 ** (-np.arange(0, D, 2) / D)
    angles = np.arange(T)[:, None] * frequencies[None, :]
    return [x, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]


def forward(x, cos, sin):
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    c, s = cos[:, None, :], sin[:, None, :]
    return np.concatenate([first * c - second * s, second * c + first * s], axis=-1)
