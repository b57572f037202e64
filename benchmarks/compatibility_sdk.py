"""Cases of aws-neuron-sdk."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.compatibility_cases import BF16, Result, case, f32, normal, selective_scan
from nki_sim.nki import simulate

EXAMPLES = "nki/examples/"


@case("sdk", EXAMPLES + "tensor_addition/tensor_addition_nki_kernels.py", "nki_tensor_add", "512x2048")
def _(kernel: Any) -> Result:
    a, b = normal(512, 2048), normal(512, 2048, seed=1)
    return simulate(kernel)(a, b), a + b


@case("sdk", EXAMPLES + "transpose2d/transpose2d_nki_kernels.py", "tensor_transpose2D_kernel_", "2x(3x4)")
def _(kernel: Any) -> Result:
    a = normal(2, 12)
    return simulate(kernel)(a, shape2D=(3, 4)).reshape(2, 4, 3), a.reshape(2, 3, 4).transpose(0, 2, 1)


@case("sdk", EXAMPLES + "average_pool2d/average_pool2d_nki_kernels.py", "tensor_avgpool_kernel", "16x36x36, pool 3")
def _(kernel: Any) -> Result:
    a = normal(16, 36, 36)
    return simulate(kernel)(a, 3), a.reshape(16, 12, 3, 12, 3).mean((2, 4))


MATMULS = EXAMPLES + "matrix_multiplication/matrix_multiplication_nki_kernels.py"
for _name, _shape in (
    ("nki_matmul_basic_", (128, 64, 512)),
    ("nki_matmul_tiled_", (512, 512, 1024)),
    ("nki_matmul_hoist_load_", (512, 512, 1024)),
    ("nki_matmul_block_free_dimension_", (512, 512, 1024)),
    ("nki_matmul_fully_optimized_", (1024, 2048, 1024)),
):

    @case("sdk", MATMULS, _name, "x".join(map(str, _shape)) + " bfloat16", tolerance=1e-2)
    def _(kernel: Any, shape: tuple[int, int, int] = _shape) -> Result:
        k, m, n = shape
        a, b = normal(k, m).astype(BF16), normal(k, n).astype(BF16)
        return simulate(kernel)(a, b), f32(a).T @ f32(b)


for _name in ("mamba_v1", "mamba_v2", "mamba_v3"):

    @case("sdk", EXAMPLES + "fused_mamba/mamba_nki_kernels.py", _name, "256 channels, 16 states, 512 steps")
    def _(kernel: Any) -> Result:
        channels, states, steps = 256, 16, 512
        delta, u = np.abs(normal(1, channels, steps)) * 0.1, normal(1, channels, steps, seed=1)
        a, b, c = -np.abs(normal(channels, states)), normal(1, states, steps), normal(1, states, steps, seed=2)
        return simulate(kernel)(delta, u, a, b, c), selective_scan(delta, u, a, b, c)


for _file in ("baremetal", "jax", "torch"):

    @case("sdk", EXAMPLES + f"getting_started_{_file}.py", "nki_tensor_add_kernel", "128x512")
    def _(kernel: Any) -> Result:
        a, b = normal(128, 512), normal(128, 512, seed=1)
        return simulate(kernel)(a, b), a + b


@case("sdk", EXAMPLES + "simulate/nki_simulate_example.py", "add_kernel", "128x512")
def _(kernel: Any) -> Result:
    a, b = normal(128, 512), normal(128, 512, seed=1)
    return simulate(kernel)(a, b), a + b


@case("sdk", EXAMPLES + "index-case-1.py", "tensor_split_kernel_", "100x255")
def _(kernel: Any) -> Result:
    a = normal(100, 255)
    return np.concatenate(simulate(kernel)(a), 1), np.concatenate([a[:, ::2], a[:, 1::2]], 1)


@case("sdk", EXAMPLES + "index-case-3.py", "tensor_maxpool_kernel_", "64x36x30, pool 3")
def _(kernel: Any) -> Result:
    a = normal(64, 36, 30)
    return simulate(kernel)(a, 3), a.reshape(64, 12, 3, 10, 3).max((2, 4))


@case("sdk", EXAMPLES + "layout-pass.py", "tensor_exp_kernel_", "128x512 bfloat16", tolerance=1e-2)
def _(kernel: Any) -> Result:
    a = normal(128, 512).astype(BF16)
    return f32(simulate(kernel)(a)), np.exp(f32(a))


@case("sdk", EXAMPLES + "layout-violation.py", "tensor_exp_kernel_", "256 partitions", rejected="128")
def _(kernel: Any) -> Result:
    a = normal(256, 512)
    return simulate(kernel)(a), np.exp(a)
