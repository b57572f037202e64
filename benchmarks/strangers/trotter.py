"""Steps of a spin chain's time evolution: half rotations of every spin, a phase, half rotations again."""

import numpy as np

P = 128
F = 64
STEPS = 4

ANGLE = 0.3

TOLERANCE = 1e-4
WORK = {"matmul_flops": 16 * STEPS * P * P * F, "vector_ops": 6 * STEPS * P * F, "hbm_bytes": 24 * P * F}


def get_inputs():
    real, imaginary = (np.random.normal(size=(P, F)).astype(np.float32) for _ in range(2))
    phase = np.exp(1j * np.random.normal(size=(P, F)))
    return [real, imaginary, phase.real.astype(np.float32), phase.imag.astype(np.float32)]


def _rotation():
    cos, sin, matrix = np.cos(ANGLE), np.sin(ANGLE), np.array([[1.0]])
    for _ in range(7):
        matrix = np.kron(matrix, np.array([[cos, 1j * sin], [1j * sin, cos]]))
    return matrix


def _partners(columns):
    return [np.arange(columns) ^ (1 << bit) for bit in range(columns.bit_length() - 1)]


def forward(real, imaginary, phase_real, phase_imaginary):
    cos, sin, rotation, phase = np.cos(ANGLE), np.sin(ANGLE), _rotation(), phase_real + 1j * phase_imaginary
    state = real + 1j * imaginary

    def rotated(state):
        for partner in _partners(state.shape[1]):
            state = cos * state + 1j * sin * state[:, partner]
        return rotation @ state

    for _ in range(STEPS):
        state = rotated(rotated(state) * phase)
    return state.real, state.imag


def transform_to_nki_inputs(inputs):
    rotation, columns = _rotation(), inputs[0].shape[1]
    parts = (rotation.real, -rotation.imag, rotation.imag, rotation.real)
    matrices = [np.ascontiguousarray(part.T).astype(np.float32) for part in parts]
    scalars = [np.full((P, 1), value, np.float32) for value in (np.cos(ANGLE), np.sin(ANGLE))]
    partners = np.stack([np.broadcast_to(partner, (P, columns)) for partner in _partners(columns)])
    return [*inputs, *scalars, np.zeros(STEPS, np.float32), *matrices, partners.astype(np.uint32)]


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(part).reshape(like.shape) for part, like in zip(kernel_result, reference)]
