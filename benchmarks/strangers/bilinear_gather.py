"""Every row a weighted sum of four rows of an image, given by their indices, float32."""

import numpy as np

K = 2048
N = 2048
C = 64

PRESETS = {"small": {"K": 256}}
DOMAINS = {"i0": (0, N - 1), "i1": (0, N - 1), "i2": (0, N - 1), "i3": (0, N - 1)}
WORK = {"matmul_flops": 0, "vector_ops": 7 * K * C, "hbm_bytes": 4 * (5 * K * C + 8 * K)}


def get_inputs():
    indices = [np.random.randint(0, N, (K, 1)).astype(np.int32) for _ in range(4)]
    weights = [np.random.random((K, 1)).astype(np.float32) for _ in range(4)]
    return [np.random.normal(size=(N, C)).astype(np.float32), *indices, *weights]


def forward(image, i0, i1, i2, i3, w0, w1, w2, w3):
    return sum(w * image[i[:, 0]] for i, w in ((i0, w0), (i1, w1), (i2, w2), (i3, w3)))
