"""Rotary embedding of row pairs (d, d + D/2) with given cosines and sines, float32."""

import numpy as np

B = 1
H = 64
N = 4096
D = 128


def get_inputs():
    x = np.random.normal(size=(D, B * H * N)).astype(np.float32)
    cos = np.random.normal(size=(D // 2, B * H * N)).astype(np.float32)
    sin = np.random.normal(size=(D // 2, B * H * N)).astype(np.float32)
    return [x, cos, sin]


def forward(x, cos, sin):
    half = x.shape[0] // 2
    low, high = x[:half], x[half:]
    return np.concatenate([low * cos - high * sin, low * sin + high * cos], axis=0)


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
