"""Images of twice the height and width, linearly interpolated (half-pixel centres), float32."""

import numpy as np

B = 2
C = 64
H = 23
W = 23

PRESETS = {"small": {"H": 11, "W": 11}}
WORK = {"matmul_flops": 0, "vector_ops": 3 * B * C * H * W * 6, "hbm_bytes": 20 * B * C * H * W}


def get_inputs():
    return [np.random.normal(size=(B, C, H, W)).astype(np.float32)]


def forward(x):
    return _twice(_twice(x, 2), 3)


def _twice(x, axis):
    x = np.moveaxis(x, axis, -1)
    padded = np.concatenate([x[..., :1], x, x[..., -1:]], -1)
    found = np.stack([0.25 * padded[..., :-2] + 0.75 * x, 0.75 * x + 0.25 * padded[..., 2:]], -1)
    return np.moveaxis(found.reshape(*x.shape[:-1], -1), -1, axis)
