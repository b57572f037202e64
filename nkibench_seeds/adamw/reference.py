"""One AdamW step from the first iteration: weight decay, both moments, bias correction; float32."""

import numpy as np

M = 10944
N = 2048


def get_inputs():
    theta = np.random.normal(size=(M, N)).astype(np.float32)
    g = np.random.normal(size=(M, N)).astype(np.float32)
    m = np.random.normal(size=(M, N)).astype(np.float32)
    v = np.abs(np.random.normal(size=(M, N))).astype(np.float32)
    return [theta, g, m, v]


def forward(theta, g, m, v):
    learning_rate, weight_decay, beta1, beta2, epsilon = 1e-3, 1e-2, 0.9, 0.999, 1e-8
    first = beta1 * m + (1 - beta1) * g
    second = beta2 * v + (1 - beta2) * g * g
    step = (first / (1 - beta1)) / (np.sqrt(second / (1 - beta2)) + epsilon)
    return theta - learning_rate * weight_decay * theta - learning_rate * step


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
