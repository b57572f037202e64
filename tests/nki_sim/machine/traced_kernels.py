"""Small kernels for the tests of the machine model. Each function traces one."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np

import nki_sim
from infra.tasks.seed_index import load_seed
from nki_sim import dtypes
from nki_sim.machine import TRN2
from nki_sim.program.program import Program
from nki_sim.tracing.session import TensorSpec

nki_sim.install()

import nki.isa as nisa  # noqa: E402  # only importable once the simulator is installed
import nki.language as nl  # noqa: E402  # the same

P = 128


def task_kernel(source: str, task: str) -> Program:
    """A kernel of a shipped task, at its smallest shape."""
    seed = load_seed(task)
    reference = _module(seed.reference_path.read_text(encoding="utf-8"), "reference")
    for key, value in seed.presets[0].values:
        setattr(reference, key, value)
    inputs = reference.transform_to_nki_inputs(reference.get_inputs())
    specs = [TensorSpec(i.shape, dtypes.as_dtype(i.dtype)) if isinstance(i, np.ndarray) else i for i in inputs]
    return nki_sim.trace(_module(source, task).kernel, *specs)


def _module(source: str, name: str) -> Any:
    module = types.ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    return module


def traced(body: Callable[[Any, Any], None], columns: int = 512, dtype: Any = dtypes.float32) -> Program:
    """body(source, result): both [128, columns] in HBM."""

    def kernel(source: Any) -> Any:
        result = nl.ndarray((P, columns), dtype=dtype, buffer=nl.shared_hbm)
        body(source, result)
        return result

    return nki_sim.trace(kernel, TensorSpec((P, columns), dtype))


def tile(columns: int = 512, dtype: Any = None, buffer: Any = None, partitions: int = P) -> Any:
    return nl.ndarray((partitions, columns), dtype=dtype or nl.float32, buffer=buffer or nl.sbuf)


def filled(tile: Any) -> Any:
    nisa.memset(dst=tile, value=0.0)
    return tile


def vector_ns(cycles: float) -> float:
    """How long Vector of trn2 is busy."""
    return (cycles + TRN2.vector_issue_cycles) / TRN2.vector_clock_ghz


def instruction(body: Callable[[], Any]) -> Program:
    """A program whose first instructions are `body`'s; a transfer from source to result follows."""

    def whole(source: Any, result: Any) -> None:
        body()
        nisa.dma_copy(dst=result, src=source)

    return traced(whole, 1)


def stream(columns: int, tiles: int, hoisted: bool = False) -> Program:
    """Load, square on Scalar, store; the tiles are fresh in every iteration, or one hoisted pair."""

    def body(source: Any, result: Any) -> None:
        if hoisted:
            loaded, squared = tile(columns), tile(columns)
        for at in range(tiles):
            here = slice(at * columns, (at + 1) * columns)
            if not hoisted:
                loaded, squared = tile(columns), tile(columns)
            nisa.dma_copy(dst=loaded, src=source[:, here])
            nisa.activation(dst=squared, op=nl.square, data=loaded)
            nisa.dma_copy(dst=result[:, here], src=squared)

    return traced(body, columns * tiles)


def matmul(k_size: int, m_size: int, n_size: int, dtype: Any = dtypes.float32) -> Program:
    """Tiled, with the loads inside."""

    def kernel(lhs_t: Any, rhs: Any) -> Any:
        out = nl.ndarray((m_size, n_size), dtype=nl.float32, buffer=nl.shared_hbm)
        for m in range(0, m_size, P):
            for n in range(0, n_size, 512):
                total = tile(buffer=nl.psum)
                for k in range(0, k_size, P):
                    weights, values = tile(P, dtype), tile(512, dtype)
                    nisa.dma_copy(dst=weights, src=lhs_t[k : k + P, m : m + P])
                    nisa.dma_copy(dst=values, src=rhs[k : k + P, n : n + 512])
                    nisa.nc_matmul(dst=total, stationary=weights, moving=values)
                stored = tile()
                nisa.tensor_copy(dst=stored, src=total)
                nisa.dma_copy(dst=out[m : m + P, n : n + 512], src=stored)
        return out

    return nki_sim.trace(kernel, TensorSpec((k_size, m_size), dtype), TensorSpec((k_size, n_size), dtype))


__all__ = ["P", "instruction", "matmul", "nisa", "nl", "stream", "tile", "traced"]
