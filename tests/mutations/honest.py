"""Honest kernels, and what the judge would say of each on fresh seeds: nothing may be refused by bad luck.

Of one task the seed, the seed after catalogue steps, and other honest forms; for bfloat16 the same kernels with every
tile that feeds a matrix product, or an elementwise chain, in bfloat16, for a task that allows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from accelopt_core.candidate import Candidate
from accelopt_core.judging.checks import Compiled, Failed
from accelopt_core.judging.correctness import Verifier
from accelopt_core.judging.inputs.draws import Draw
from accelopt_core.judging.reference.verification import Reference, ReferenceCache, argument_specs
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import PrecisionPolicy, Task
from infra.tasks.seed_index import load_seed
from tests.mutations.bases import bases
from tests.mutations.judging import small, toolchain
from tests.mutations.narrow import BFLOAT16_WITHIN, giving_float8, in_bfloat16, in_bfloat16_within
from tests.redteam.test_shortcuts import BACKWARDS, OTHER_FORMS, TILINGS

BF16_TOLERANCE = 1e-2
"""What a user would declare: a handful of bfloat16 roundings, 2e-3 each."""

BF16 = {
    "matmul": ("lhs_t = nl.ndarray((TILE_K, TILE_M), dtype=lhs.dtype", "rhs_tile = nl.ndarray((TILE_K, TILE_N), dtype"),
    "bmm": ("lhs_t = nl.ndarray((K, TILE_M), dtype=lhs.dtype", "rhs_tile = nl.ndarray((K, TILE_N), dtype"),
    "silu": ("out = nl.ndarray((TILE_M, TILE_N), dtype=result.dtype",),
    "rope_single_freq_apply": ("low_cos = nl.ndarray((half, TILE_T), dtype=nl.float32", "high_sin = nl.ndarray("),
    "swiglu": ("hidden_t = nl.ndarray((TILE_K, TILE_M), dtype=nl.float32", "down_tile = nl.ndarray("),
}
"""Beginnings of the allocations that are made bfloat16 in a seed."""


def in_bf16(name: str) -> str:
    """The seed with those tiles in bfloat16; what DMA cannot convert on its way is loaded as it is, then copied."""
    source = load_seed(name).kernel_source
    for beginning in BF16[name]:
        lines = source.splitlines(keepends=True)
        at = next(i for i, line in enumerate(lines) if line.strip().startswith(beginning))
        tile = lines[at].split("=")[0].strip()
        wide = re.sub(r"dtype=[\w.]+", "dtype=nl.bfloat16", lines[at])
        loaded = next((i for i in range(at, len(lines)) if f"dma_copy(dst={tile}," in lines[i]), None)
        stored = next((i for i in range(at, len(lines)) if f"src={tile})" in lines[i] and "result[" in lines[i]), None)
        pad = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        if loaded is not None:
            lines[at] += wide.replace(tile, f"{tile}_narrow", 1)
            lines[loaded] += f"{pad}nisa.tensor_copy(dst={tile}_narrow, src={tile})\n"
            rest = "".join(lines[loaded + 1 :])
            lines[loaded + 1 :] = [re.sub(rf"\b{tile}\b", f"{tile}_narrow", rest)]
        elif stored is not None:
            lines[at] += wide.replace(tile, f"{tile}_narrow", 1)
            lines[stored] = f"{pad}nisa.tensor_copy(dst={tile}, src={tile}_narrow)\n{lines[stored]}"
            between = "".join(lines[at + 1 : stored])
            lines[at + 1 : stored] = [re.sub(rf"\bdst={tile}\b", f"dst={tile}_narrow", between)]
        else:
            lines[at] = wide
        source = "".join(lines)
    return source


def _forms(name: str) -> Iterator[str]:
    yield from (base.source for base in bases() if base.task == name)
    constant, value = TILINGS[name]
    if constant:
        yield re.sub(rf"(?m)^{constant} = \d+$", f"{constant} = {value}", load_seed(name).kernel_source)
    for form, (task, old, new) in OTHER_FORMS.items():
        if task == name:
            source = load_seed(name).kernel_source.replace(old, new)
            if form == "contraction backwards":
                source = source.replace("lhs[m * TILE_M : (m + 1) * TILE_M, k * TILE_K : (k + 1) * TILE_K]", BACKWARDS)
            yield source


def _allowing_bf16(name: str) -> Task:
    return replace(small(name), tolerance=BF16_TOLERANCE, precision=PrecisionPolicy.BF16_ALLOWED)


def _alone(make: Callable[[str], tuple[Task, str]], name: str) -> tuple[Task, tuple[str, ...]]:
    task, source = make(name)
    return task, (source,)


HONEST: dict[str, Callable[[], tuple[Task, tuple[str, ...]]]] = {
    **{name: lambda name=name: (small(name), tuple(_forms(name))) for name in TILINGS},  # type: ignore[misc]
    **{f"{name} in bfloat16": lambda name=name: (_allowing_bf16(name), (in_bf16(name),)) for name in BF16},  # type: ignore[misc]
    **{f"{name} of bfloat16": partial(_alone, in_bfloat16, name) for name in TILINGS},
    **{f"{name} of bfloat16 tiles": partial(_alone, in_bfloat16_within, name) for name in BFLOAT16_WITHIN},
    **{f"{name} to float8": partial(_alone, giving_float8, name) for name in ("silu", "bmm_softmax")},
}
"""Task and kernels by name."""


class _OneDraw(ReferenceCache):
    """Remembers what was computed for the draw at hand: the next kernel is checked on the same."""

    def __init__(self) -> None:
        super().__init__(None)
        self.computed: dict[str, tuple[np.ndarray, ...]] = {}

    def kept(self, reference: Reference, what: str, compute: Any) -> tuple[np.ndarray, ...]:
        if what not in self.computed:
            self.computed[what] = compute()
        return self.computed[what]

    def known(self, reference: Reference, seed: int, what: str) -> tuple[np.ndarray, ...] | None:
        return self.computed.get(f"{seed}/{what}")

    def keep(self, reference: Reference, seed: int, what: str, result: tuple[np.ndarray, ...], seconds: float) -> None:
        self.computed[f"{seed}/{what}"] = result


def refusals(name: str, seeds: Iterable[int]) -> list[str]:
    """What is refused, and why: every kernel of the name, with every distribution, for every seed."""
    task, sources = HONEST[name]()
    reference = Reference(task, task.full)
    specs = argument_specs(reference.kernel_arguments(reference.inputs(0)))
    cache = _OneDraw()
    verifiers = []
    for source in sources:
        request = EvaluationRequest(task, Candidate("h", source, "input"))
        compiled = Compiled(task.full, reference, specs, toolchain().compile(source, specs, 60), 0)
        verifiers.append(Verifier(request, toolchain(), compiled, cache))
    found = []
    with np.errstate(all="ignore"):
        for seed in seeds:
            for distribution in task.distributions:
                cache.computed.clear()
                for number, verifier in enumerate(verifiers):
                    result = verifier._check(Draw(seed, distribution))
                    if isinstance(result, Failed):
                        found.append(f"{name}, kernel {number}, seed {seed}: {result.evaluation}")
    return found
