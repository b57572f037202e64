"""Small kernels with room for improvement, and what a model might make of them."""

REFERENCE = """
import numpy as np

P, N, T = 128, 2048, 4


def get_inputs():
    return [np.random.normal(size=(T * P, N)).astype(np.float32), np.random.normal(size=(P, N)).astype(np.float32)]


def forward(x, y):
    return x + np.tile(y, (T, 1))


def transform_to_nki_inputs(inputs):
    return inputs


def transform_nki_outputs(result, reference):
    return [np.reshape(result, reference.shape)]
"""

SLOW = """
import nki
import nki.isa as nisa
import nki.language as nl

STEP = 256


@nki.jit
def kernel(x, y):
    rows, n = x.shape
    out = nl.ndarray((rows, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for t in range(rows // 128):
        for j in range(n // STEP):
            a = nl.ndarray((128, STEP), dtype=x.dtype, buffer=nl.sbuf)
            b = nl.ndarray((128, STEP), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=a, src=x[t * 128 : (t + 1) * 128, j * STEP : (j + 1) * STEP])
            nisa.dma_copy(dst=b, src=y[0:128, j * STEP : (j + 1) * STEP])
            c = nl.ndarray((128, STEP), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)
            nisa.dma_copy(dst=out[t * 128 : (t + 1) * 128, j * STEP : (j + 1) * STEP], src=c)
    return out
"""
"""Small DMA rows: slow for a reason that one constant removes."""
FAST = SLOW.replace("STEP = 256", "STEP = 2048")
WRONG = FAST.replace("op=nl.add", "op=nl.subtract")
BROKEN = FAST.replace("nisa.tensor_tensor(", "nisa.tensor_plus(")

IN_A_PACKAGE = {
    "pack/__init__.py": "",
    "pack/moves.py": """
import nki.isa as nisa
import nki.language as nl


def load(src, columns):
    tile = nl.ndarray((128, columns), dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src)
    return tile
""",
    "pack/add.py": """
import nki
import nki.isa as nisa
import nki.language as nl

from .moves import load

STEP = 256
TUNABLES = {"STEP": (256, 2048)}


@nki.jit
def add_rows(x, y):
    rows, n = x.shape
    out = nl.ndarray((rows, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for t in range(rows // 128):
        for j in range(n // STEP):
            a = load(x[t * 128 : (t + 1) * 128, j * STEP : (j + 1) * STEP], STEP)
            b = load(y[0:128, j * STEP : (j + 1) * STEP], STEP)
            c = nl.ndarray((128, STEP), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)
            nisa.dma_copy(dst=out[t * 128 : (t + 1) * 128, j * STEP : (j + 1) * STEP], src=c)
    return out
""",
}
"""The same kernel, called otherwise, with its loads in a file beside it."""
