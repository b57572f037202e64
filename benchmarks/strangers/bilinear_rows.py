"""An image of as many rows as it came with, each the weighted sum of four of them, given by their indices, float32."""

import numpy as np

K = 1024
C = 128

PRESETS = {"small": {"K": 256}}
DOMAINS = {"i0": (0, K - 1), "i1": (0, K - 1), "i2": (0, K - 1), "i3": (0, K - 1)}
WORK = {"matmul_flops": 0, "vector_ops": 7 * K * C, "hbm_bytes": 4 * (2 * K * C + 8 * K)}


def get_inputs():
    indices = [np.random.randint(0, K, (K, 1)).astype(np.int32) for _ in range(4)]
    weights = [np.random.random((K, 1)).astype(np.float32) for _ in range(4)]
    return [np.random.normal(size=(K, C)).astype(np.float32), *indices, *weights]


def forward(image, i0, i1, i2, i3, w0, w1, w2, w3):
    return sum(w * image[i[:, 0]] for i, w in ((i0, w0), (i1, w1), (i2, w2), (i3, w3)))
