"""The honest kernels that wrong ones are made from: the shipped seeds, each as the catalogue leaves it, and two cores.

A seed after catalogue steps stands for its suite winner: the same hoisted loads, kept tiles, fused sums and moved
engines. `after_steps/` has what they once left, so that the corpus stays as it is when the catalogue changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from infra.tasks.seed_index import seed_index


@dataclass(frozen=True)
class Base:
    name: str
    task: str
    """The seed whose reference says what it must compute."""
    source: str


FOLDER = Path(__file__).with_name("after_steps")

TWO_CORES = '''
"""The same silu on two cores by way of HBM: each makes one half, and stores the half that the other made."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128


@nki.jit
def two_cores(x):
    M, N = x.shape
    half = N // 2
    result = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    made = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    core = nl.program_id(0)
    mine, other = core * half, (1 - core) * half
    for m in range(M // TILE_M):
        tile = nl.ndarray((TILE_M, half), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[m * TILE_M : (m + 1) * TILE_M, mine : mine + half])
        out = nl.ndarray((TILE_M, half), dtype=x.dtype, buffer=nl.sbuf)
        nisa.activation(dst=out, op=nl.silu, data=tile)
        nisa.dma_copy(dst=made[m * TILE_M : (m + 1) * TILE_M, mine : mine + half], src=out)
    nisa.core_barrier(data=made, cores=(0, 1))
    for m in range(M // TILE_M):
        kept = nl.ndarray((TILE_M, half), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=kept, src=made[m * TILE_M : (m + 1) * TILE_M, other : other + half])
        nisa.dma_copy(dst=result[m * TILE_M : (m + 1) * TILE_M, other : other + half], src=kept)
    return result


kernel = two_cores[2]
'''


@cache
def bases() -> tuple[Base, ...]:
    seeds = tuple(Base(seed.name, seed.name, seed.kernel_source) for seed in seed_index())
    after = tuple(
        Base(f"{seed.name} after steps", seed.name, (FOLDER / f"{seed.name}.py").read_text(encoding="utf-8"))
        for seed in seed_index()
    )
    return (*seeds, *after, Base("silu on two cores", "silu", TWO_CORES))
