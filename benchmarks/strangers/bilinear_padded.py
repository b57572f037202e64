"""Every row between four of an image: by the index of the first, and how far right and below of it, float32."""

import numpy as np

K = 1024
H = 32
W = 65
C = 64

PRESETS = {"small": {"K": 256}}
DOMAINS = {"first": (0, H * W - W - 2)}
WORK = {"matmul_flops": 0, "vector_ops": 7 * K * C, "hbm_bytes": 4 * (5 * K * C + 3 * K)}


def get_inputs():
    image = np.random.normal(size=(H * W, C)).astype(np.float32)
    first = np.random.randint(0, H * W - W - 1, (K, 1)).astype(np.uint32)
    return [image, first, *(np.random.random((K, 1)).astype(np.float32) for _ in range(2))]


def forward(image, first, right, below):
    at = first[:, 0]
    upper = (1 - right) * image[at] + right * image[at + 1]
    return (1 - below) * upper + below * ((1 - right) * image[at + W] + right * image[at + W + 1])


def transform_to_nki_inputs(inputs):
    return [*inputs, W]
