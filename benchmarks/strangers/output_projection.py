"""Heads of attention joined by a product, out[b, s] = sum over heads of a[b, h, :, s] w[h], and a bias, float32."""

import numpy as np

B = 1
H = 4
D = 128
S = 2048
N = 1024

PRESETS = {"small": {"S": 256, "N": 512}}
TOLERANCE = 1e-4
WORK = {
    "matmul_flops": 2 * B * H * D * S * N,
    "vector_ops": B * S * N,
    "hbm_bytes": 4 * (B * H * D * S + H * D * N + N + B * S * N),
}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((B, H, D, S), (H * D, N), (1, N))]


def forward(attention, weight, bias):
    batch, heads, d, steps = attention.shape
    return attention.reshape(batch, heads * d, steps).swapaxes(1, 2) @ weight + bias


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
