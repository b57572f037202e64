"""Scan of Mamba-2: state = decay * state + drive for every head, dimension and state; sum of c * state, plus a skip."""

import numpy as np

H = 64
D = 8
S = 16
L = 512

PRESETS = {"small": {"H": 24, "D": 4, "S": 8, "L": 300}}
TOLERANCE = 1e-4
WORK = {
    "matmul_flops": 0,
    "vector_ops": 4 * H * D * S * L,
    "hbm_bytes": 4 * (H * L + D * S * H * L + S * H * L + 2 * D * H * L + D * S * H),
}


def get_inputs():
    decay = np.random.uniform(0.5, 1.0, size=(H, L)).astype(np.float32)
    shapes = ((D, S, H, L), (S, H, L), (D, H, L))
    return [decay, *(np.random.normal(size=shape).astype(np.float32) for shape in shapes)]


def forward(decay, drive, c, skip):
    state, y = np.zeros(drive.shape[:-1]), np.array(skip, np.float64)
    for t in range(decay.shape[-1]):
        state = decay[:, t] * state + drive[..., t]
        y[..., t] += (state * c[..., t]).sum(1)
    return y, state


def transform_to_nki_inputs(inputs):
    decay, drive, c, skip = inputs
    states, heads, steps = c.shape
    flat = [part.reshape(-1, steps) for part in (drive, c, skip, skip)]
    return [decay, *flat, np.zeros(len(skip), np.float32), np.zeros(states, np.float32)]


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(part).reshape(like.shape) for part, like in zip(kernel_result, reference)]
