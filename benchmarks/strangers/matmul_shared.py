"""The matrices of a batch, given turned, times one matrix that they share; tiles of a block given, bfloat16."""

import ml_dtypes
import numpy as np

B = 2
K = 2048
M = 256
N = 2048

BLOCK_M = 1
BLOCK_N = 2
BLOCK_K = 8

PRESETS = {"small": {"B": 1, "K": 1024, "M": 128, "N": 1024}}
TOLERANCE = 2e-2
PRECISION = "bf16-allowed"
WORK = {"matmul_flops": 2 * B * K * M * N, "vector_ops": 0, "hbm_bytes": 2 * (B * K * M + K * N + B * M * N)}


def get_inputs():
    shapes = ((B, K, M), (K, N))
    return [np.random.normal(scale=K**-0.25, size=shape).astype(ml_dtypes.bfloat16) for shape in shapes]


def forward(turned, shared):
    return turned.swapaxes(1, 2) @ shared


def transform_to_nki_inputs(inputs):
    return [*inputs, BLOCK_M, BLOCK_N, BLOCK_K]


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).astype(np.float32)]
