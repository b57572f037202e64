"""Public kernels to try: how to call each, and what it must compute, in NumPy.

A case is a function that takes `load(file, function)`, calls the kernel and returns (result, expected).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from nki_sim.nki import language as nl
from nki_sim.nki import simulate

Load = Callable[[str, str], Any]
Result = tuple[np.ndarray, np.ndarray]
BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Case:
    repository: str
    """sdk, autocomp or library."""
    file: str
    function: str
    what: str
    run: Callable[[Any], Result]
    """Takes the loaded kernel."""
    tolerance: float = 1e-4
    """Largest difference, relative to the largest expected magnitude."""


CASES: list[Case] = []


def case(
    repository: str, file: str, function: str, what: str, tolerance: float = 1e-4
) -> Callable[[Callable[[Any], Result]], Callable[[Any], Result]]:
    def register(run: Callable[[Any], Result]) -> Callable[[Any], Result]:
        CASES.append(Case(repository, file, function, what, run, tolerance))
        return run

    return register


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def f32(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float32)


# --- aws-neuron-sdk nki/examples ----------------------------------------------------------------------

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
        h, y = np.zeros((channels, states)), np.zeros((1, channels, steps))
        for t in range(steps):
            h = np.exp(delta[0, :, t, None] * a) * h + delta[0, :, t, None] * b[0, :, t] * u[0, :, t, None]
            y[0, :, t] = (h * c[0, :, t]).sum(-1)
        return simulate(kernel)(delta, u, a, b, c), y


# --- ucb-bar/autocomp ---------------------------------------------------------------------------------

TUTORIAL, ADVANCED = "sols/trn-tutorial-nki2/", "sols/trn-advanced-nki2/"


@case("autocomp", TUTORIAL + "0_rmsnorm_ref.py", "solution", "256x512")
def _(kernel: Any) -> Result:
    a, g = normal(256, 512), normal(512)
    return simulate(kernel)(a, g), a / np.sqrt((a * a).mean(-1, keepdims=True)) * g


@case("autocomp", TUTORIAL + "1_layernorm_ref.py", "solution", "256x512")
def _(kernel: Any) -> Result:
    a, g, b = normal(256, 512), normal(512), normal(512, seed=1)
    centred = a - a.mean(-1, keepdims=True)
    return simulate(kernel)(a, 1e-5, g, b), centred / np.sqrt(a.var(-1, keepdims=True) + 1e-5) * g + b


@case("autocomp", TUTORIAL + "2_gemm_ref.py", "solution", "1024x2048x2048, bfloat16 inside", tolerance=1e-2)
def _(kernel: Any) -> Result:
    a, b = normal(2048, 1024), normal(2048, 2048)
    return simulate(kernel)(a, b), a.T @ b


@case("autocomp", TUTORIAL + "4_attention_ref.py", "solution", "d 128, n 512")
def _(kernel: Any) -> Result:
    q, k, v = (normal(128, 512, seed=i) for i in range(3))
    return simulate(kernel)(q, k, v), softmax(q.T @ k) @ v.T


@case("autocomp", TUTORIAL + "5_sdattention_ref.py", "solution", "n 1024, d 64")
def _(kernel: Any) -> Result:
    q, k, v = (normal(1024, 64, seed=i) for i in range(3))
    return simulate(kernel)(q, k, v), softmax(q @ k.T / 8) @ v


@case("autocomp", ADVANCED + "0_cumsum_ref.py", "solution", "256x1000")
def _(kernel: Any) -> Result:
    a = normal(256, 1000)
    return simulate(kernel)(a), a.cumsum(-1)


@case("autocomp", ADVANCED + "1_transpose_ref.py", "solution", "128x64x96")
def _(kernel: Any) -> Result:
    a = normal(128, 64, 96)
    return simulate(kernel)(a, 1), np.swapaxes(a, 1, 2)


@case("autocomp", ADVANCED + "2_maxpool_ref.py", "solution", "448x448, pool 3")
def _(kernel: Any) -> Result:
    a = normal(448, 448)
    return simulate(kernel)(a, 3), np.lib.stride_tricks.sliding_window_view(a, (3, 3)).max((2, 3))


def rotated(x: np.ndarray, c: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Rotary embedding with the dimensions on axis 0, first half paired with the second."""
    half = len(x) // 2
    a, b = x[:half], x[half:]
    return np.concatenate([a * c - b * s, b * c + a * s])


@case("autocomp", ADVANCED + "3_rope_ref.py", "solution", "128x512")
def _(kernel: Any) -> Result:
    x, c, s = normal(128, 512), normal(64, 512), normal(64, 512, seed=1)
    return simulate(kernel)(x, c, s), rotated(x, c, s)


@case("autocomp", ADVANCED + "4_conv1d_ref.py", "solution", "2x512x100, width 3")
def _(kernel: Any) -> Result:
    x, f = normal(2, 512, 1, 100), normal(512, 1, 1, 3)
    padded = np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1)))
    taps = sum(padded[:, :, :, i : i + 100] * f[None, :, 0, 0, i][:, :, None, None] for i in range(3))
    return simulate(kernel)(x, f, ((0, 0), (1, 1))), np.asarray(taps)


@case("autocomp", ADVANCED + "6_csa_2048_ref.py", "solution", "n 2048, d 128, causal", tolerance=2e-3)
def _(kernel: Any) -> Result:
    n = 2048
    q, k, v, mask = normal(n, 128) * 0.1, normal(128, n), normal(n, 128), np.tril(np.ones((n, n), np.float32))
    scores = np.where(mask > 0, q @ k, -9984.0)
    return simulate(kernel)(q, k, v, mask, nl.float32, nl.float32)[0], np.exp(
        scores - scores.max(-1, keepdims=True)
    ) @ v


# --- aws-neuron/nki-library ---------------------------------------------------------------------------

LIBRARY = "src/nkilib_src/nkilib/"


def library(file: str, function: str, what: str, tolerance: float = 1e-4) -> Any:
    return case("library", LIBRARY + file, function, what, tolerance)


for _rows, _columns in ((256, 3000), (100, 515)):

    @library("core/cumsum/cumsum.py", "cumsum", f"{_rows}x{_columns}")
    def _(kernel: Any, rows: int = _rows, columns: int = _columns) -> Result:
        x = normal(rows, columns)
        return simulate(kernel)(x), x.cumsum(-1)


for _cores, _steps in ((None, 256), (2, 512)):

    @library("core/embeddings/rope.py", "RoPE", f"128x1x4x{_steps}, {_cores or 1} cores")
    def _(kernel: Any, cores: int | None = _cores, steps: int = _steps) -> Result:
        x, c, s = normal(128, 1, 4, steps), normal(64, 1, steps), normal(64, 1, steps, seed=1)
        launched = kernel if cores is None else kernel[cores]
        return simulate(launched)(x, c, s, lnc_shard=cores is not None), rotated(x, c[:, :, None], s[:, :, None])


for _heads, _steps in ((4, 256), (8, 128)):

    @library("core/embeddings/rope_hf.py", "rope_hf", f"{_heads} heads, {_steps} steps, d 128")
    def _(kernel: Any, heads: int = _heads, steps: int = _steps) -> Result:
        q, k = normal(1, heads, steps, 128), normal(1, 2, steps, 128)
        c, s = normal(1, steps, 128), normal(1, steps, 128, seed=1)
        turned = np.concatenate([-q[..., 64:], q[..., :64]], -1)
        result = simulate(kernel)(q, k, np.zeros_like(q), np.zeros_like(k), c, s)
        return result[0], q * c[:, None] + turned * s[:, None]


for _steps in (128, 200):

    @library("core/rmsnorm/rmsnorm_quant.py", "rmsnorm_quant_kernel", f"2x{_steps}x512 to float8", tolerance=0.05)
    def _(kernel: Any, steps: int = _steps) -> Result:
        import sys

        module = sys.modules[kernel.__module__]
        kinds = sys.modules["nkilib.core.utils.common_types"]
        options = module.RmsNormQuantKernelArgs(
            lower_bound=0.0,
            norm_type=kinds.NormType.RMS_NORM,
            quantization_type=kinds.QuantizationType.ROW,
            eps=1e-6,
        )
        x, w = normal(2, steps, 512).astype(BF16), normal(512).astype(BF16)
        out = simulate(kernel)(x, w, options)
        scales = np.ascontiguousarray(out[..., 512:]).view(np.float32)
        wide = f32(x)
        expected = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * f32(w)
        return f32(out[..., :512]) * scales, expected


for _rows, _columns in ((8, 4096), (4, 16384)):

    @library("core/max/cascaded_max.py", "cascaded_max", f"{_rows}x{_columns}, values and positions")
    def _(kernel: Any, rows: int = _rows, columns: int = _columns) -> Result:
        x = normal(rows, columns)
        values, positions = simulate(kernel)(x)
        return np.stack([values.ravel(), f32(positions.ravel())]), np.stack([x.max(-1), f32(x.argmax(-1))])


for _shape, _cores in (((1, 4, 128, 256, 512), None), ((2, 2, 64, 384, 1024), 2)):

    @library(
        "core/output_projection/output_projection_cte.py",
        "output_projection_cte",
        "x".join(map(str, _shape)) + f", {_cores or 1} cores",
    )
    def _(kernel: Any, shape: tuple[int, ...] = _shape, cores: int | None = _cores) -> Result:
        batch, heads, d, steps, hidden = shape
        a, w, bias = normal(batch, heads, d, steps), normal(heads * d, hidden), normal(1, hidden)
        launched = kernel if cores is None else kernel[cores]
        return simulate(launched)(a, w, bias), np.einsum("bns,nh->bsh", a.reshape(batch, -1, steps), w) + bias


for _tokens, _hidden, _experts, _k, _before in ((128, 256, 64, 4, True), (256, 512, 128, 8, False)):

    @library("core/router_topk/router_topk.py", "router_topk", f"{_tokens} tokens, top {_k} of {_experts}")
    def _(
        kernel: Any, t: int = _tokens, h: int = _hidden, e: int = _experts, k: int = _k, before: bool = _before
    ) -> Result:
        import sys

        kinds = sys.modules["nkilib.core.utils.common_types"]
        x, w, bias = normal(t, h), normal(h, e) * 0.1, normal(1, e)
        outputs = np.zeros((t, e), np.float32), np.zeros((t, e), np.float32), np.zeros((t, k), np.uint32)
        out = simulate(kernel)(
            np.ascontiguousarray(x.T), w, bias, *outputs, kinds.RouterActFnType.SOFTMAX, k, 0, 0, before
        )
        logits = x @ w + bias
        if before:
            return out[2], softmax(logits)
        top = np.argsort(-logits, -1)[:, :k]
        expected = np.zeros_like(logits)
        np.put_along_axis(expected, top, softmax(np.take_along_axis(logits, top, -1)), -1)
        return out[2], expected


for _c, _co, _length, _width, _stride, _pad, _dilation, _cores in (
    (64, 96, 200, 3, 1, (1, 1), 1, None),
    (128, 256, 777, 5, 2, (0, 3), 2, None),
    (64, 256, 300, 3, 1, (1, 1), 1, 2),
):

    @library("experimental/conv/conv1d.py", "conv1d", f"{_c}->{_co} channels, width {_width}, {_cores or 1} cores")
    def _(
        kernel: Any,
        c: int = _c,
        co: int = _co,
        length: int = _length,
        width: int = _width,
        stride: int = _stride,
        pad: tuple[int, int] = _pad,
        dilation: int = _dilation,
        cores: int | None = _cores,
    ) -> Result:
        x, f, bias = normal(2, c, length), normal(width, c, co), normal(co)
        padded = np.pad(x, ((0, 0), (0, 0), pad))
        steps = (padded.shape[-1] - dilation * (width - 1) - 1) // stride + 1
        taps = [padded[:, :, i * dilation : i * dilation + stride * (steps - 1) + 1 : stride] for i in range(width)]
        expected = sum(np.einsum("bcl,co->bol", tap, f[i]) for i, tap in enumerate(taps)) + bias[None, :, None]
        launched = kernel if cores is None else kernel[cores]
        return simulate(launched)(x, f, bias, stride, pad, dilation, None, cores is not None), np.asarray(expected)


for _c, _width in ((256, 4), (128, 7)):

    @library(
        "experimental/conv/depthwise_conv1d.py", "depthwise_conv1d_implicit_gemm", f"{_c} channels, width {_width}"
    )
    def _(kernel: Any, c: int = _c, width: int = _width) -> Result:
        x, f = normal(1, c, 1, 100), normal(c, 1, 1, width)
        windows = np.lib.stride_tricks.sliding_window_view(x[:, :, 0], width, -1)
        expected = np.einsum("ncwk,ck->ncw", windows, f[:, 0, 0])[:, :, None]
        return simulate(kernel)(x, f, feature_group_count=c), expected


for _vocabulary, _chunk in ((4096, 2048), (3000, 3000)):

    @library("experimental/loss/cross_entropy.py", "cross_entropy_forward", f"128 positions, vocabulary {_vocabulary}")
    def _(kernel: Any, vocabulary: int = _vocabulary, chunk: int = _chunk) -> Result:
        x = normal(128, vocabulary)
        targets = np.random.default_rng(0).integers(0, vocabulary, 128).astype(np.int32)
        loss = simulate(kernel[2])(x, targets, 32, chunk, nl.float32)[0].ravel()
        return loss, np.log(np.exp(x).sum(-1)) - x[np.arange(128), targets]
