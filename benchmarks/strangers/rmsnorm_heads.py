"""Each head's row of queries and of keys over its root mean square, times weights of its columns, float32."""

import numpy as np

B = 1
S = 512
H = 8
G = 2
D = 128

EPSILON = 1e-6

PRESETS = {"small": {"S": 128, "H": 4}}
WORK = {"matmul_flops": 0, "vector_ops": 5 * B * S * (H + G) * D, "hbm_bytes": 8 * B * S * (H + G) * D + 8 * D}


def get_inputs():
    shapes = ((B, S, H, D), (B, S, G, D), (D,), (D,))
    return [np.random.normal(size=shape).astype(np.float32) for shape in shapes]


def forward(q, k, q_weight, k_weight):
    return tuple(
        x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight for x, weight in ((q, q_weight), (k, k_weight))
    )


def transform_to_nki_inputs(inputs):
    return [*inputs, EPSILON]
