"""Every row a weighted sum of two neighbours in an image and the two below them, by the index of one, float32."""

import numpy as np

K = 1024
H = 32
W = 64
C = 64

PRESETS = {"small": {"K": 256}}
DOMAINS = {"first": (0, H * W - W - 2)}
WORK = {"matmul_flops": 0, "vector_ops": 7 * K * C, "hbm_bytes": 4 * (5 * K * C + 5 * K)}


def get_inputs():
    image = np.random.normal(size=(H * W, C)).astype(np.float32)
    first = np.random.randint(0, H * W - W - 1, (K, 1)).astype(np.uint32)
    return [image, first, *(np.random.random((K, 1)).astype(np.float32) for _ in range(4))]


def forward(image, first, w0, w1, w2, w3):
    return sum(w * image[first[:, 0] + step] for step, w in ((0, w0), (1, w1), (W, w2), (W + 1, w3)))


def transform_to_nki_inputs(inputs):
    return [*inputs, W]
