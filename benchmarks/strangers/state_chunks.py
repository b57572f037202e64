"""A state taken through affine steps, one for each chunk: what each chunk begins with, and the last one, float32."""

import numpy as np

N = 16
D = 128

PRESETS = {"small": {"N": 2}}
TOLERANCE = 1e-4
WORK = {"matmul_flops": 2 * N * D * D * D, "vector_ops": N * D * D, "hbm_bytes": 4 * D * D * (3 * N + 2)}


def get_inputs():
    steps = np.random.normal(scale=D**-0.5, size=(N, D, D))
    return [part.astype(np.float32) for part in (steps, *np.split(np.random.normal(size=(N + 1, D, D)), [N]))]


def forward(steps, added, first):
    states = [first.reshape(steps.shape[1:])]
    for step, more in zip(steps, added, strict=True):
        states.append(step @ states[-1] + more)
    return np.stack(states[:-1]), states[-1]


def transform_to_nki_inputs(inputs):
    steps, added, first = inputs
    return [steps, added, first[0]]
