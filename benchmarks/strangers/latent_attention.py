"""Attention of one token over a compressed cache: a row is a rotary key and a latent, both key and value."""

import numpy as np

B = 2
H = 2
S = 1024
R = 64
C = 512
D = 256

SCALE = 1 / 16

PRESETS = {"small": {"B": 1, "S": 512}}
TOLERANCE = 1e-4
DOMAINS = {"mask": "fixed"}
WORK = {
    "matmul_flops": 2 * B * H * (S * (R + 2 * C) + C * D),
    "vector_ops": 7 * B * H * S,
    "hbm_bytes": 4 * (B * S * (R + C) + H * D * C + B * H * (R + C + D)) + B * H * S,
}


def get_inputs():
    shapes = ((B * H, R), (B * H, C), (B, S, R + C), (H, D, C))
    arrays = [np.random.normal(size=shape).astype(np.float32) for shape in shapes]
    return [*arrays, (np.arange(S) < S - S // 8).astype(np.uint8)[None].repeat(B * H, 0)]


def forward(q_rotary, q_latent, cache, absorbed, mask):
    heads, rotary = len(absorbed), q_rotary.shape[1]
    rows = cache.repeat(heads, 0)
    scores = np.einsum("hc,hsc->hs", np.concatenate([q_rotary, q_latent], 1), rows) * SCALE
    scores = np.where(mask == 0, scores - 9984, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    latent = np.einsum("hs,hsc->hc", weights / weights.sum(-1, keepdims=True), rows[..., rotary:])
    return np.einsum("hc,hdc->hd", latent, np.concatenate([absorbed] * (len(q_rotary) // heads)))


def transform_to_nki_inputs(inputs):
    return [*inputs, SCALE, H, R, C, D, S]
