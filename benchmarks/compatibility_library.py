"""Cases of aws-neuron/nki-library, kernel by kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.compatibility_cases import BF16, Register, Result, case, f32, normal, rotated, softmax
from nki_sim.nki import language as nl
from nki_sim.nki import simulate

LIBRARY = "src/nkilib_src/nkilib/"


def library(file: str, function: str, what: str, tolerance: float = 1e-4) -> Register:
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
            lower_bound=0.0, norm_type=kinds.NormType.RMS_NORM, quantization_type=kinds.QuantizationType.ROW, eps=1e-6
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
        "core/output_projection/output_projection_cte/output_projection_cte.py",
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


def narrow(*arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays as bfloat16; references take f32 of these, so that only the kernel's own rounding counts."""
    return [array.astype(BF16) for array in arrays]


@library("core/cumsum/cumsum.py", "cumsum", "128x1000, bfloat16", tolerance=1e-2)
def _(kernel: Any) -> Result:
    (x,) = narrow(normal(128, 1000))
    return f32(simulate(kernel)(x)), f32(x).cumsum(-1)


@library("core/embeddings/rope.py", "RoPE", "128x2x4x128, bfloat16", tolerance=2e-2)
def _(kernel: Any) -> Result:
    x, c, s = narrow(normal(128, 2, 4, 128), normal(64, 2, 128), normal(64, 2, 128, seed=1))
    return f32(simulate(kernel)(x, c, s)), rotated(f32(x), f32(c)[:, :, None], f32(s)[:, :, None])


@library("core/embeddings/rope_hf.py", "rope_hf", "4 heads, 128 steps, d 128, bfloat16", tolerance=2e-2)
def _(kernel: Any) -> Result:
    q, k, c, s = narrow(
        normal(1, 4, 128, 128), normal(1, 2, 128, 128), normal(1, 128, 128), normal(1, 128, 128, seed=1)
    )
    result = simulate(kernel)(q, k, np.zeros_like(q), np.zeros_like(k), c, s)
    wide = f32(q)
    turned = np.concatenate([-wide[..., 64:], wide[..., :64]], -1)
    return f32(result[0]), wide * f32(c)[:, None] + turned * f32(s)[:, None]


@library("core/max/cascaded_max.py", "cascaded_max", "8x4096, values, bfloat16", tolerance=0.0)
def _(kernel: Any) -> Result:
    (x,) = narrow(normal(8, 4096))
    values, _ = simulate(kernel)(x)  # the kernel keeps positions in the type of x: bfloat16 rounds those above 256
    return f32(values.ravel()), f32(x).max(-1)


@library(
    "core/output_projection/output_projection_cte/output_projection_cte.py",
    "output_projection_cte",
    "1x4x128x256x512, bfloat16",
    tolerance=1e-2,
)
def _(kernel: Any) -> Result:
    a, w, bias = narrow(normal(1, 4, 128, 256), normal(512, 512), normal(1, 512))
    expected = np.einsum("bns,nh->bsh", f32(a).reshape(1, -1, 256), f32(w)) + f32(bias)
    return f32(simulate(kernel)(a, w, bias)), expected


@library("core/router_topk/router_topk.py", "router_topk", "128 tokens, all affinities of 64, bfloat16", tolerance=3e-2)
def _(kernel: Any) -> Result:
    import sys

    kinds = sys.modules["nkilib.core.utils.common_types"]
    x, w, bias = narrow(normal(128, 256), normal(256, 64) * 0.1, normal(1, 64))
    outputs = np.zeros((128, 64), BF16), np.zeros((128, 64), BF16), np.zeros((128, 4), np.uint32)
    out = simulate(kernel)(np.ascontiguousarray(x.T), w, bias, *outputs, kinds.RouterActFnType.SOFTMAX, 4, 0, 0, True)
    return f32(out[2]), softmax(f32(x) @ f32(w) + f32(bias))


@library("experimental/conv/conv1d.py", "conv1d", "64->96 channels, width 3, bfloat16", tolerance=1e-2)
def _(kernel: Any) -> Result:
    x, f, bias = narrow(normal(2, 64, 200), normal(3, 64, 96), normal(96))
    padded = np.pad(f32(x), ((0, 0), (0, 0), (1, 1)))
    expected = sum(np.einsum("bcl,co->bol", padded[:, :, i : i + 200], f32(f)[i]) for i in range(3))
    return f32(simulate(kernel)(x, f, bias, 1, (1, 1), 1)), np.asarray(expected + f32(bias)[None, :, None])


@library(
    "experimental/conv/depthwise_conv1d.py",
    "depthwise_conv1d_implicit_gemm",
    "256 channels, width 4, bfloat16",
    tolerance=1e-2,
)
def _(kernel: Any) -> Result:
    x, f = narrow(normal(1, 256, 1, 100), normal(256, 1, 1, 4))
    windows = np.lib.stride_tricks.sliding_window_view(f32(x)[:, :, 0], 4, -1)
    expected = np.einsum("ncwk,ck->ncw", windows, f32(f)[:, 0, 0])[:, :, None]
    return f32(simulate(kernel)(x, f, feature_group_count=256)), expected


@library(
    "experimental/loss/cross_entropy.py",
    "cross_entropy_forward",
    "128 positions, vocabulary 4096, bfloat16",
    tolerance=2e-2,
)
def _(kernel: Any) -> Result:
    (x,) = narrow(normal(128, 4096))
    targets = np.random.default_rng(0).integers(0, 4096, 128).astype(np.int32)
    loss = f32(simulate(kernel[2])(x, targets, 32, 2048, nl.bfloat16)[0].ravel())
    return loss, np.log(np.exp(f32(x)).sum(-1)) - f32(x)[np.arange(128), targets]
