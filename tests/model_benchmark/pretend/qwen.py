"""A small transformer in NumPy whose matrix products and attention are NKI kernels, run on the simulator.

Two layers, four heads of 128, 512 tokens: x + attention(x) Wo, then x + silu(x Wu) Wd, each of a normalized x.
"""

import numpy as np
from attention_kernel import attention
from matmul_kernel import matmul

import nki_sim
from nki_sim.execution.executor import execute
from nki_sim.profile.profile import measure

TOKENS, WIDTH, HEADS, HIDDEN, LAYERS = 512, 512, 4, 1024, 2
REST_US = 150.0
"""Of a step, in what is no kernel here: normalizing, adding, the rest of a model."""

_drawn = np.random.default_rng(20)
WEIGHTS = [
    {
        name: (_drawn.normal(size=shape) / shape[0] ** 0.5).astype(np.float32)
        for name, shape in (
            ("q", (WIDTH, WIDTH)), ("k", (WIDTH, WIDTH)), ("v", (WIDTH, WIDTH)), ("o", (WIDTH, WIDTH)),
            ("up", (WIDTH, HIDDEN)), ("down", (HIDDEN, WIDTH)),
        )
    }
    for _ in range(LAYERS)
]  # fmt: skip


class Step:
    """One pass through the model, and what its kernels took."""

    programs = {}

    def __init__(self):
        self.calls = []
        """Name, shapes, simulated µs and multiply-accumulates of each kernel call, in order."""

    def run(self, prompt):
        x = np.random.default_rng(list(prompt.encode())).normal(size=(TOKENS, WIDTH)).astype(np.float32)
        return self.forward(x, self.matmul, self.attention)

    def expected(self, prompt):
        """The same in float64, without a kernel."""
        x = np.random.default_rng(list(prompt.encode())).normal(size=(TOKENS, WIDTH)).astype(np.float32)
        return self.forward(x.astype(np.float64), np.matmul, plain_attention)

    @staticmethod
    def forward(x, matmul, attention):
        for each in WEIGHTS:
            y = normalized(x)
            heads = [matmul(y, each[name]).reshape(1, TOKENS, HEADS, -1) for name in ("q", "k", "v")]
            mixed = attention(*heads)[0].transpose(1, 0, 2).reshape(TOKENS, WIDTH)
            x = x + matmul(np.ascontiguousarray(mixed), each["o"])
            up = matmul(normalized(x), each["up"])
            x = x + matmul(up / (1 + np.exp(-up)), each["down"])
        return x

    def matmul(self, a, b):
        return self._call("matmul", matmul, a.shape[0] * a.shape[1] * b.shape[1], a, b)

    def attention(self, q, k, v):
        return self._call("attention", attention, 2 * HEADS * TOKENS * TOKENS * (WIDTH // HEADS), q, k, v)

    def _call(self, name, kernel, macs, *arrays):
        shapes = tuple("x".join(map(str, array.shape)) for array in arrays)
        if (name, shapes) not in self.programs:
            program = nki_sim.trace(kernel, *arrays)
            self.programs[name, shapes] = program, measure(program).latency_us
        program, latency_us = self.programs[name, shapes]
        self.calls.append((name, shapes, latency_us, macs))
        return execute(program, [np.ascontiguousarray(array) for array in arrays])[0]

    @property
    def step_us(self):
        return REST_US + sum(latency_us for _, _, latency_us, _ in self.calls)


def normalized(x):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.asarray(1e-6, x.dtype))


def plain_attention(q, k, v):
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bhqd", scores / scores.sum(axis=-1, keepdims=True), v)
