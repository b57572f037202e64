"""Integrals of an atomic basis to those of occupied and virtual orbitals, for each auxiliary function, float32."""

import numpy as np

N = 256
A = 8
E = 32
V = 128

PRESETS = {"small": {"A": 2}}
TOLERANCE = 1e-4
WORK = {
    "matmul_flops": 2 * A * E * N * (N + V),
    "vector_ops": 0,
    "hbm_bytes": 4 * (N * N * A + N * (E + V) + E * V * A),
}


def get_inputs():
    return [np.random.normal(size=shape).astype(np.float32) for shape in ((N, N, A), (N, E), (N, V))]


def forward(integrals, occupied, virtual):
    return np.einsum("mi,mnp,na->iap", occupied, integrals, virtual, optimize=True)
