"""Timing a compiled kernel, alone or against an incumbent, so that a device's drift is not taken for a gain.

Where timing is exact (the simulator) one number is the latency. A device warms up, throttles and is shared: there the
two kernels are timed in turns, incumbent, candidate, incumbent, candidate, ..., incumbent, in short blocks, and each
block of the candidate is held against the incumbent's blocks just before and just after it:

    ratio_i = candidate_i / sqrt(incumbent_i * incumbent_i+1)          block_i: the median of its executions

A drift that is steady over three blocks cancels in each ratio, a jump spoils at most two of them. From n ratios

    ratio = median(ratio_i)
    noise = 3 * 1.2533 * 1.4826 * median(|ratio_i - ratio|) / sqrt(n)

three standard errors of a median, with the spread estimated from the median deviation, which single outliers do not
move. The candidate is faster than the incumbent if ratio < 1 - noise.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accelopt_core.evaluation import Step
from accelopt_core.ports import EvaluationLimits, Progress
from accelopt_core.toolchain import Timing, Toolchain

TURNS = 5
"""Blocks of the candidate; the incumbent has one more."""

_BAND = 3 * 1.2533 * 1.4826
"""Standard errors; of a median over that of a mean; of a normal distribution over its median deviation."""


@dataclass(frozen=True)
class PairedTiming:
    """Two kernels timed in turns."""

    candidate: Timing
    ratio: float
    """Latency of the candidate over that of the incumbent, drift taken out."""
    noise: float
    """As a fraction of the incumbent's latency."""


Block = Callable[[int, float], Sequence[float]]
"""So many executions within so many seconds: the latency of each in µs."""


def time_alone(
    toolchain: Toolchain, artifact: Any, tensors: Sequence[np.ndarray], limits: EvaluationLimits, progress: Progress
) -> Timing:
    """Measure; measure again while the spread is too wide, at most `remeasure` times; keep the calmest."""

    def attempt() -> tuple[Timing, float]:
        timing = toolchain.time(artifact, tensors, limits.warmup, limits.iterations, limits.run_timeout_s)
        return timing, spread(timing)

    return _calmest(attempt, "spread", limits, progress)


def time_paired(candidate: Block, incumbent: Block, limits: EvaluationLimits, progress: Progress) -> PairedTiming:
    """As the module says; again while the noise band is too wide. An attempt takes at most `run_timeout_s` altogether.

    Raises what a block raises.
    """

    def attempt() -> tuple[PairedTiming, float]:
        result = _one_pairing(candidate, incumbent, limits)
        return result, result.noise

    return _calmest(attempt, "noise band", limits, progress)


def _calmest(attempt: Callable[[], tuple[Any, float]], what: str, limits: EvaluationLimits, progress: Progress) -> Any:
    best, unrest = attempt()
    for _ in range(limits.remeasure):
        if unrest <= limits.max_spread:
            break
        progress(Step.BENCHMARK, f"{what} {100 * unrest:.1f} % is above {100 * limits.max_spread:g} %: again")
        again, value = attempt()
        if value < unrest:
            best, unrest = again, value
    return best


def _one_pairing(candidate: Block, incumbent: Block, limits: EvaluationLimits) -> PairedTiming:
    executions = math.ceil(limits.iterations / TURNS)
    deadline = time.monotonic() + limits.run_timeout_s

    def block(kernel: Block) -> Sequence[float]:
        return kernel(executions, max(0.0, deadline - time.monotonic()))

    ours: list[Sequence[float]] = []
    theirs = [block(incumbent)]
    for _ in range(TURNS):
        ours.append(block(candidate))
        theirs.append(block(incumbent))
    ratio, noise = compare([statistics.median(b) for b in ours], [statistics.median(b) for b in theirs])
    return PairedTiming(Timing(tuple(sample for b in ours for sample in b)), ratio, noise)


def compare(candidate: Sequence[float], incumbent: Sequence[float]) -> tuple[float, float]:
    """(ratio, noise) of n blocks between n + 1 of the incumbent; (infinite, 0) for a time that is not positive."""
    if min(*candidate, *incumbent) <= 0:
        return math.inf, 0.0
    ratios = [
        own / math.sqrt(before * after) for own, before, after in zip(candidate, incumbent, incumbent[1:], strict=False)
    ]
    middle = statistics.median(ratios)
    deviation = statistics.median(abs(ratio - middle) for ratio in ratios)
    return middle, _BAND * deviation / math.sqrt(len(ratios))


def spread(timing: Timing) -> float:
    """(max - min) / min, as NKIBench defines it."""
    low = min(timing.samples_us)
    return (max(timing.samples_us) - low) / low if low > 0 else 0.0
