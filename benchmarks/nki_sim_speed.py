"""What simulating costs, as ratios to NumPy on the same machine in the same run.

    python benchmarks/nki_sim_speed.py

Prints each number with the limit it is held to, and how fast traces are timed; status 1 when a limit is exceeded.
Every time is the best of several, and simulator and NumPy take turns, so that noise hits both alike.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nki_sim
from benchmarks import timing_speed
from nki_sim.dtypes import float32
from nki_sim.nki import isa as nisa
from nki_sim.nki import jit, simulate
from nki_sim.nki import language as nl
from nki_sim.tracing.session import TensorSpec

M, K, N = 2048, 1024, 1024
ROUNDS = 7
MATMUL_RATIO_LIMIT = 1.5
NUMBERS_US_LIMIT = 15.0
TRACE_US_LIMIT = 8.0
MEMORY_RATIO_LIMIT = 1.2


@jit
def tiled_matmul(lhs_t: Any, rhs: Any) -> Any:
    """result[M, N] = lhs_t[K, M].T @ rhs[K, N], one output tile at a time."""
    k_size, m_size = lhs_t.shape
    n_size = rhs.shape[1]
    result = nl.ndarray((m_size, n_size), nl.float32, buffer=nl.shared_hbm)
    for m in range(m_size // 128):
        for n in range(n_size // 512):
            acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            for k in range(k_size // 128):
                left = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
                right = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=left, src=lhs_t[k * 128 : (k + 1) * 128, m * 128 : (m + 1) * 128])
                nisa.dma_copy(dst=right, src=rhs[k * 128 : (k + 1) * 128, n * 512 : (n + 1) * 512])
                nisa.nc_matmul(dst=acc, stationary=left, moving=right, accumulate=k > 0)
            out = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out, src=acc)
            nisa.dma_copy(dst=result[m * 128 : (m + 1) * 128, n * 512 : (n + 1) * 512], src=out)
    return result


def bare_matmul(lhs_t: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """The same tile loop, with the same copies, in NumPy."""
    k_size, m_size = lhs_t.shape
    n_size = rhs.shape[1]
    result = np.empty((m_size, n_size), np.float32)
    for m in range(m_size // 128):
        for n in range(n_size // 512):
            acc = np.zeros((128, 512), np.float32)
            for k in range(k_size // 128):
                left = lhs_t[k * 128 : (k + 1) * 128, m * 128 : (m + 1) * 128].copy()
                right = rhs[k * 128 : (k + 1) * 128, n * 512 : (n + 1) * 512].copy()
                acc += left.T @ right
            out = acc.copy()
            result[m * 128 : (m + 1) * 128, n * 512 : (n + 1) * 512] = out
    return result


INSTRUCTIONS = 4000


@jit
def small_instructions(a: Any) -> Any:
    """Instructions on so few elements that only their overhead counts."""
    out = nl.ndarray((16, 8), nl.float32, buffer=nl.shared_hbm)
    x = nl.ndarray((16, 8), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=x, src=a)
    for _ in range(INSTRUCTIONS // 2):
        y = nl.ndarray((16, 8), nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=y, data=x, op0=nl.multiply, operand0=1.0)
        nisa.tensor_tensor(dst=x, data1=y, data2=y, op=nl.maximum)
    nisa.dma_copy(dst=out, src=x)
    return out


def bare_small_instructions(a: np.ndarray) -> np.ndarray:
    x = a.copy()
    for _ in range(INSTRUCTIONS // 2):
        y = np.multiply(x, np.float32(1.0))
        np.maximum(y, y, out=x)
    return x


def best_of_turns(clock: Callable[[], float], *calls: Callable[[], Any]) -> list[float]:
    """The shortest time of each call in seconds; the calls take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for i, call in enumerate(calls):
            start = clock()
            call()
            best[i] = min(best[i], clock() - start)
    return best


def peak_bytes(call: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main() -> int:
    rng = np.random.default_rng(0)
    lhs_t, rhs = rng.standard_normal((K, M), np.float32), rng.standard_normal((K, N), np.float32)
    small = np.ones((16, 8), np.float32)
    np.testing.assert_allclose(simulate(tiled_matmul)(lhs_t, rhs), lhs_t.T @ rhs, rtol=1e-3, atol=1e-3)
    with_numbers, bare = best_of_turns(
        time.perf_counter, lambda: simulate(tiled_matmul)(lhs_t, rhs), lambda: bare_matmul(lhs_t, rhs)
    )
    cpu = time.process_time  # one thread's own time, whatever else the machine does
    tiny, bare_tiny = best_of_turns(
        cpu, lambda: simulate(small_instructions)(small), lambda: bare_small_instructions(small)
    )
    specs = (TensorSpec((2048, 2048), float32), TensorSpec((2048, 4096), float32))
    instructions = len(nki_sim.trace(tiled_matmul, *specs))
    (tracing,) = best_of_turns(cpu, lambda: nki_sim.trace(tiled_matmul, *specs))
    held = lhs_t.nbytes + rhs.nbytes + M * N * 4 + (128 * 512 * 3 + 128 * 128) * 4
    # the arguments are the caller's arrays, so the simulator only adds to them
    used = peak_bytes(lambda: simulate(tiled_matmul)(lhs_t, rhs)) + lhs_t.nbytes + rhs.nbytes
    rows = [
        (f"tiled {M}x{K}x{N} float32 matmul, simulated / bare NumPy", with_numbers / bare, MATMUL_RATIO_LIMIT),
        ("overhead per instruction with numbers, us", (tiny - bare_tiny) / INSTRUCTIONS * 1e6, NUMBERS_US_LIMIT),
        ("overhead per instruction trace-only, us", tracing / instructions * 1e6, TRACE_US_LIMIT),
        ("memory / tensors the kernel holds", used / held, MEMORY_RATIO_LIMIT),
    ]
    for name, value, limit in rows:
        print(f"{name:<60} {value:8.2f}   limit {limit:5.1f}   {'ok' if value <= limit else 'EXCEEDED'}")
    print("\nTiming a trace on one core")
    too_slow = timing_speed.main(None, list(timing_speed.ROWS))
    return 0 if all(value <= limit for _, value, limit in rows) and not too_slow else 1


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    sys.exit(main())
