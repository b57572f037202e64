"""Cases of ucb-bar/autocomp."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.compatibility_cases import BF16, Result, case, f32, normal, rotated, selective_scan, softmax
from nki_sim.nki import language as nl
from nki_sim.nki import simulate

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


@case("autocomp", TUTORIAL + "3_mamba_ref.py", "solution", "256 channels, 4 states, 1024 steps")
def _(kernel: Any) -> Result:
    channels, states, steps = 256, 4, 1024
    delta, u = np.abs(normal(1, channels, steps)) * 0.1, normal(1, channels, steps, seed=1)
    a, b, c = -np.abs(normal(channels, states)), normal(1, states, steps), normal(1, states, steps, seed=2)
    result = simulate(kernel)(delta, u, a, np.repeat(b, 128, 1), np.repeat(c, 128, 1))
    return result, selective_scan(delta, u, a, b, c)


for _shape, _taps, _out in (((1, 64, 18, 20), 3, 128), ((2, 128, 9, 33), 2, 64)):

    @case("autocomp", ADVANCED + "5_conv2d_ref.py", "solution", f"{'x'.join(map(str, _shape))}, {_taps}x{_taps}")
    def _(kernel: Any, shape: tuple[int, ...] = _shape, taps: int = _taps, out: int = _out) -> Result:
        x, f = normal(*shape), normal(shape[1], taps, taps, out)
        order = [0, 1, 2, 3]
        result = simulate(kernel)(x, f, padding=((0, 0), (0, 0)), in_perm=order, kern_perm=order, out_perm=order)
        windows = np.lib.stride_tricks.sliding_window_view(x, (taps, taps), (2, 3))
        return result, np.einsum("nchwab,cabo->nohw", windows, f)


@case("autocomp", ADVANCED + "7_csa_16384_ref.py", "solution", "128 queries of 16384, d 128", tolerance=2e-3)
def _(kernel: Any) -> Result:
    n, d, tile = 16384, 128, 100
    q, k, v = normal(d, n) * 0.1, normal(d, n), normal(n, d)
    rows = tile * 128 + np.arange(128)
    mask = (rows[:, None] >= np.arange(n)).astype(np.float32)
    before = np.concatenate([np.zeros((128, d + 1)), np.full((128, 1), -9984.0)], 1).astype(np.float32)
    tiled = np.ascontiguousarray(v.reshape(-1, 128, d).swapaxes(0, 1))
    result = simulate(kernel)(q, k, tiled, before, nl.float32, nl.float32, mask, q_tile_idx=tile)
    scores = np.where(mask > 0, q[:, rows].T @ k, -9984.0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    sums = weights.sum(-1, keepdims=True)
    return result, np.concatenate([weights @ v, sums, scores.max(-1, keepdims=True)], 1)


for _dtype, _tolerance in ((np.float32, 2e-3), (BF16, 3e-2)):

    @case(
        "autocomp",
        ADVANCED + "8_mha_ref.py",
        "solution",
        f"2 heads, n 1024, d 128, {np.dtype(_dtype).name}",
        tolerance=_tolerance,
    )
    def _(kernel: Any, dtype: Any = _dtype) -> Result:
        heads, n, d = 2, 1024, 128
        q, k, v = (normal(heads, *shape).astype(dtype) for shape in ((n, d), (d, n), (n, d)))
        q = (f32(q) * 0.1).astype(dtype)
        mask = np.tril(np.ones((n, n), np.float32))
        result = simulate(kernel)(q, k, v, mask, dtype, nl.float32, num_heads=heads, seq_len=n, d_head=d)[0]
        scores = np.where(mask > 0, f32(q) @ f32(k), -9984.0)
        return f32(result), np.exp(scores - scores.max(-1, keepdims=True)) @ f32(v)


INTERNAL = "sols/trn-internal/"

for _n, _dtype in ((256, np.float32), (512, BF16)):

    @case(
        "autocomp",
        INTERNAL + "10_openfold3_trimul_ref.py",
        "solution",
        f"n {_n}, {np.dtype(_dtype).name}",
        tolerance=1e-2,
    )
    def _(kernel: Any, n: int = _n, dtype: Any = _dtype) -> Result:
        a, b = normal(n, n).astype(dtype), normal(n, n, seed=1).astype(dtype)
        return f32(simulate(kernel)(a, b)), f32(a).T @ f32(b)


@case(
    "autocomp",
    INTERNAL + "12_flashvsr_fp32attn_ref.py",
    "solution",
    "256x1024, bfloat16; its operands are not transposed, so against the products that it does form",
    tolerance=1e-2,
)
def _(kernel: Any) -> Result:
    q, k, v = (normal(1, *shape).astype(BF16) for shape in ((256, 128), (128, 1024), (1024, 128)))
    expected = np.zeros((1, 256, 128))
    for start in (0, 128):
        scores = f32((f32(q[0, start : start + 128]) * 128**-0.5).astype(BF16)).T @ f32(k[0])
        tile, running, total = expected[0, start : start + 128], np.full((128, 1), -9984.0), np.zeros((128, 1))
        for chunk in (0, 512):
            part = scores[:, chunk : chunk + 512]
            highest = np.maximum(running, part.max(-1, keepdims=True))
            weights = np.exp(part - highest)
            total = total * np.exp(running - highest) + weights.sum(-1, keepdims=True)
            tile *= np.exp(running - highest)
            for i in range(0, 512, 128):
                tile += weights[:, i : i + 128].T @ f32(v[0, chunk + i : chunk + i + 128])
            running = highest
        tile /= total
    return f32(simulate(kernel)(q, k, v, 128**-0.5)), expected


@case(
    "autocomp",
    INTERNAL + "15_gemm_ref.py",
    "solution",
    "128x64x512: an output in nl.hbm, as before NKI 0.3",
    rejected="shared_hbm",
)
def _(kernel: Any) -> Result:
    a, b = normal(128, 64), normal(128, 512)
    return simulate(kernel)(a, b), a.T @ b


for _dtype in (np.float32, BF16):

    @case(
        "autocomp",
        INTERNAL + "3_triattn_ref.py",
        "solution",
        f"n 128, 2 heads, d 16, {np.dtype(_dtype).name}",
        tolerance=3e-2 if _dtype is BF16 else 1e-4,
    )
    def _(kernel: Any, dtype: Any = _dtype) -> Result:
        n, heads, d = 128, 2, 16
        q, k, v = (normal(n, n, heads * d, seed=i).astype(dtype) for i in range(3))
        bias = normal(n, n, heads).astype(dtype)
        wide = [f32(x).reshape(n, n, heads, d) for x in (q, k, v)]
        scores = np.einsum("iqhd,ikhd->ihqk", wide[0], wide[1]) * 0.25 + f32(bias).transpose(2, 0, 1)
        expected = np.einsum("ihqk,ikhd->iqhd", softmax(scores), wide[2])
        return f32(simulate(kernel)(q, k, v, bias, 0.25)), expected.reshape(n, n, -1)


@case("autocomp", INTERNAL + "4_trimul_ref.py", "solution", "n 256, 8 channels, bfloat16", tolerance=1e-2)
def _(kernel: Any) -> Result:
    a, b = normal(256, 256, 8).astype(BF16), normal(256, 256, 8, seed=1).astype(BF16)
    return f32(simulate(kernel)(a, b)), np.einsum("ikd,jkd->ijd", f32(a), f32(b))


@case("autocomp", INTERNAL + "5_fft256_ref.py", "solution", "128 transforms of 256")
def _(kernel: Any) -> Result:
    x = normal(128, 256) + 1j * normal(128, 256, seed=1)
    w = np.exp(-2j * np.pi * np.outer(np.arange(128), np.arange(128)) / 128)
    twiddle = np.broadcast_to(np.exp(-2j * np.pi * np.arange(128) / 256), (128, 128))
    parts = [f32(part(z)) for z in (x, w, twiddle) for part in (np.real, np.imag)]
    real, imaginary = simulate(kernel)(*parts)
    expected = np.fft.fft(x, axis=-1)
    return np.stack([real, imaginary]), np.stack([expected.real, expected.imag])


@case("autocomp", INTERNAL + "6_mamba_scan_ref.py", "solution", "24 heads, 4 dimensions, 8 states, 300 steps")
def _(kernel: Any) -> Result:
    heads, dims, states, steps = 24, 4, 8, 300
    decay = np.random.default_rng(0).uniform(0.5, 1.0, (heads, steps)).astype(np.float32)
    drive, c, skip = normal(dims, states, heads, steps), normal(states, heads, steps), normal(dims, heads, steps)
    state, y = np.zeros((dims, states, heads)), np.array(skip, np.float64)
    for t in range(steps):
        state = decay[:, t] * state + drive[..., t]
        y[..., t] += (state * c[..., t]).sum(1)
    ranges = np.zeros(dims, np.float32), np.zeros(states, np.float32)
    flat = [np.ascontiguousarray(x.reshape(-1, steps)) for x in (drive, c, skip, skip)]
    out, last = simulate(kernel)(decay, *flat, *ranges)
    return np.concatenate([out.ravel(), last.ravel()]), np.concatenate([y.ravel(), state.ravel()])


@case("autocomp", INTERNAL + "7_trotter_ref.py", "solution", "9 spins, 3 steps")
def _(kernel: Any) -> Result:
    columns, steps, angle = 4, 3, 0.3
    cos, sin = np.cos(angle), np.sin(angle)
    psi = normal(128, columns) + 1j * normal(128, columns, seed=1)
    phase = np.exp(1j * normal(128, columns, seed=2))
    rotation = np.array([[1.0]])
    for _ in range(7):
        rotation = np.kron(rotation, np.array([[cos, 1j * sin], [1j * sin, cos]]))
    partners = np.stack([np.broadcast_to(np.arange(columns) ^ (1 << i), (128, columns)) for i in range(2)])
    matrices = [f32(m.T) for m in (rotation.real, -rotation.imag, rotation.imag, rotation.real)]
    scalars = [np.full((128, 1), value, np.float32) for value in (cos, sin)]
    real, imaginary = simulate(kernel)(
        f32(psi.real),
        f32(psi.imag),
        f32(phase.real),
        f32(phase.imag),
        *scalars,
        np.zeros(steps, np.float32),
        *matrices,
        partners.astype(np.uint32),
    )

    def rotate(state: np.ndarray) -> np.ndarray:
        for partner in partners:
            state = cos * state + 1j * sin * state[:, partner[0]]
        return np.asarray(rotation @ state)

    for _ in range(steps):
        psi = rotate(rotate(psi) * phase)
    return np.stack([real, imaginary]), np.stack([psi.real, psi.imag])


@case("autocomp", INTERNAL + "8_deltanet_recurrent_ref.py", "solution", "24 tokens")
def _(kernel: Any) -> Result:
    tokens = 24
    q, k, v = (normal(tokens, 128, seed=i) * 0.1 for i in range(3))
    decay = np.repeat(-np.abs(normal(tokens, 1)), 128, 1)
    gate = np.repeat(np.abs(normal(tokens, 1, seed=1)), 128, 1)
    state, expected = np.zeros((128, 128)), np.zeros((tokens, 128))
    for t in range(tokens):
        state = state * np.exp(decay[t])[:, None]
        state = state + np.outer(k[t], (v[t] - k[t] @ state) * gate[t])
        expected[t] = q[t] @ state
    return simulate(kernel)(q, k, v, decay, gate), expected
