"""The honest kernels that wrong ones are made from: the shipped seeds, each as the catalogue leaves it, and two cores.

A seed after catalogue steps stands for its suite winner: the same hoisted loads, kept tiles, fused sums and moved
engines. What they leave lies in `after_steps/`, so that the corpus stays as it is when a transform changes;
`made_again` makes it afresh.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from accelopt_core.transforms.base import parse_kernel
from accelopt_core.transforms.registry import transform_named
from infra.tasks.seed_index import load_seed, seed_index


@dataclass(frozen=True)
class Base:
    name: str
    task: str
    """The seed whose reference says what it must compute."""
    source: str


FOLDER = Path(__file__).with_name("after_steps")

STEPS: dict[str, tuple[tuple[str, str], ...]] = {
    "matmul": (
        ("hoist-invariant-load", "lhs_t/n"),
        ("retile", "TILE_N=128"),
        ("move-elementwise-work", "lhs_t@scalar"),
        ("transpose-by-dma", "lhs_tile"),
        ("transpose-by-pe", "lhs_t"),
    ),
    "transpose_matmul": (
        ("hoist-invariant-load", "lhs_tile/n"),
        ("retile", "TILE_N=128"),
        ("move-elementwise-work", "out@scalar"),
        ("block-tiles", "m#0x2"),
    ),
    "bmm": (
        ("hoist-invariant-load", "lhs_t/n"),
        ("retile", "TILE_N=128"),
        ("move-elementwise-work", "lhs_t@scalar"),
        ("transpose-by-dma", "lhs_tile"),
        ("transpose-by-pe", "lhs_t"),
    ),
    "bmm_softmax": (
        ("hoist-invariant-load", "lhs_t/n"),
        ("retile", "TILE_N=128"),
        ("move-elementwise-work", "lhs_t@scalar"),
        ("fuse-row-sum", "total"),
        ("transpose-by-dma", "lhs_tile"),
    ),
    "rmsnorm_matmul": (
        ("hoist-invariant-load", "w_tile/m"),
        ("hoist-invariant-preparation", "normed_t/n"),
        ("retile", "TILE_N=128"),
        ("move-elementwise-work", "normed@scalar"),
        ("fuse-row-sum", "total"),
    ),
    "add_rmsnorm_matmul": (
        ("hoist-invariant-load", "w_tile/m"),
        ("hoist-invariant-preparation", "scaled_t/n"),
        ("retile", "TILE_N=128"),
        ("move-elementwise-work", "gain@scalar"),
        ("fuse-row-sum", "total"),
    ),
    "matmul_add_rmsnorm": (
        ("hoist-invariant-load", "x_t/n"),
        ("retile", "TILE_N=128"),
        ("move-elementwise-work", "gain@scalar"),
        ("evacuate-psum", "acc"),
        ("fuse-row-sum", "total"),
    ),
    "swiglu": (
        ("hoist-invariant-load", "x_t/n"),
        ("hoist-invariant-preparation", "hidden_t/d"),
        ("retile", "TILE_N=128"),
        ("move-elementwise-work", "x_t@scalar"),
        ("evacuate-psum", "up"),
    ),
    "lora": (
        ("hoist-invariant-load", "a_tile/m"),
        ("retile", "TILE_N=128"),
        ("move-elementwise-work", "xa_t@scalar"),
        ("evacuate-psum", "low_rank"),
        ("drop-copy", "full_rank"),
    ),
    "gqa_full": (
        ("hoist-invariant-load", "k_tile/i"),
        ("hoist-invariant-preparation", "k_t/i"),
        ("retile", "TILE_S=128"),
        ("move-elementwise-work", "k_t@scalar"),
        ("evacuate-psum", "acc"),
    ),
    "rope_single_freq_apply": (
        ("retile", "TILE_T=512"),
        ("move-elementwise-work", "low_cos@gpsimd"),
        ("fill-partitions", "t#0"),
    ),
    "silu": (("retile", "TILE_N=1024"),),
    "adamw": (
        ("retile", "TILE_N=1024"),
        ("move-elementwise-work", "g_part@scalar"),
        ("reciprocal-on-scalar", "inverse"),
        ("widen-dma-rows", "j#1x2"),
    ),
    "mamba": (
        ("hoist-invariant-load", "b_row/i"),
        ("retile", "TILE_T=128"),
        ("move-elementwise-work", "delta_u@gpsimd"),
        ("evacuate-psum", "b_spread"),
        ("drop-copy", "b_spread_out"),
    ),
}
"""Transform and site, in order."""

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
        Base(f"{name} after {len(steps)} steps", name, (FOLDER / f"{name}.py").read_text(encoding="utf-8"))
        for name, steps in STEPS.items()
    )
    return (*seeds, *after, Base("silu on two cores", "silu", TWO_CORES))


def made_again(name: str) -> str:
    """The seed of that name after its steps: what is in `after_steps/`, but for its layout."""
    source = load_seed(name).kernel_source
    for transform, key in STEPS[name]:
        source = transform_named(transform).apply(parse_kernel(source), key).code
    return source
