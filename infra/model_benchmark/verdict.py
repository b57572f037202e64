"""What comes of a benchmark: both runs of the harness, and whether the kernels are worth their place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from infra.model_benchmark.figures import Accuracy, Figures, Gain, answers_are_as_long, gain


class Verdict(Enum):
    FASTER = "faster"
    NOT_FASTER = "not faster"
    FAILED = "failed"
    """The answers are wrong, or the harness does not come to its end with the kernels in, however fast."""


@dataclass(frozen=True)
class HarnessRun:
    """One run of the harness: when (UTC), how long, what it measured, and the folder here with all that came back."""

    began: str
    elapsed_s: float
    figures: Figures
    folder: str


@dataclass(frozen=True)
class Benchmarked:
    """Both runs, and what follows. `kernels` and `gain` are None where the harness failed with the kernels in."""

    checkout: str
    baseline: HarnessRun
    kernels: HarnessRun | None
    gain: Gain | None
    verdict: Verdict
    why: str
    """One line."""
    in_place: bool
    """The kernels are in the checkout still."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PutBack:
    """`files` are as they were; `kept`: copies, on the host, of those that somebody had changed since."""

    checkout: str
    files: tuple[str, ...]
    kept: tuple[str, ...]


def judged(before: Figures, after: Figures | None, failure: str) -> tuple[Verdict, str]:
    """By the score where the harness has one, else by what both runs report: latency, time per token, throughput."""
    if after is None:
        return Verdict.FAILED, failure
    if after.accuracy is Accuracy.FAILED:
        return Verdict.FAILED, "the answers are wrong with the kernels in: whatever the speed, the benchmark failed"
    if before.accuracy is Accuracy.PASSED and after.accuracy is Accuracy.UNCHECKED:
        return Verdict.FAILED, "the answers were checked without the kernels, and are not with them: nobody knows them"
    won = gain(before, after)
    named = (("score", won.score), ("latency", won.latency), ("time per token", won.per_token),
             ("throughput", won.throughput))  # fmt: skip
    name, ratio = next(((name, ratio) for name, ratio in named if ratio is not None), ("", None))
    if ratio is None:
        return Verdict.FAILED, "the two runs report nothing in common to compare"
    verdict = Verdict.FASTER if ratio > 1 else Verdict.NOT_FASTER
    why = f"{name} {'is better' if ratio > 1 else 'is no better'} by a factor of {ratio:.4g}"
    if not answers_are_as_long(before, after):
        lengths = f"{after.answer_tokens:g} tokens with the kernels, {before.answer_tokens:g} without"
        why += f"; latency is not compared, as answers are not as long ({lengths})"
    return verdict, why
