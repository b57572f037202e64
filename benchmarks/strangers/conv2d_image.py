"""Convolution of one image by square filters, without padding, and a bias for each output channel, float32."""

import numpy as np

B = 1
C = 256
K = 128
H = 18
W = 18
TAPS = 3

PRESETS = {"small": {"C": 128}}
TOLERANCE = 1e-4
WORK = {
    "matmul_flops": 2 * B * C * K * TAPS * TAPS * (H - TAPS + 1) * (W - TAPS + 1),
    "vector_ops": B * K * (H - TAPS + 1) * (W - TAPS + 1),
    "hbm_bytes": 4 * (B * C * H * W + K * C * TAPS * TAPS + K + B * K * (H - TAPS + 1) * (W - TAPS + 1)),
}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((B, C, H, W), (K, C, TAPS, TAPS), (K,))]


def forward(x, filters, bias):
    windows = np.lib.stride_tricks.sliding_window_view(x, filters.shape[2:], (2, 3))
    return np.einsum("nchwab,ocab->nohw", windows, filters, optimize=True) + bias[None, :, None, None]


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
