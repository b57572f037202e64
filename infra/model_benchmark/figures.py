"""What a harness measured of a model, and the score that the NKI MoE challenge makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import add

_AS_LONG = 0.01
"""Part of their length by which answers may differ before their latencies are no longer compared."""


class Accuracy(Enum):
    """What a harness says of the model's answers."""

    PASSED = "passed"
    FAILED = "failed"
    UNCHECKED = "not checked"
    """The harness does not look at them, whatever its score assumes."""


@dataclass(frozen=True)
class PromptScore:
    """One prompt as aws-neuron/nki-moe scores it: `calculate_score` in main.py; README, "Evaluation and Scoring"."""

    base_latency_ms: float
    """Of the organizers' reference implementation."""
    base_tokens_per_s: float
    accuracy: float
    """1 or 0."""
    latency_ms: float
    """The 99th percentile, end to end, as main.py takes it."""
    tokens_per_s: float
    nki_flop_share: float
    """Multiply-accumulates in NKI kernels over all of the model's, 0 to 1."""

    @property
    def score(self) -> float:
        """Accuracy x reduced latency x increased throughput x (1 + share in NKI), in the harness's order of operations,
        so that it is the same number to the last digit."""
        increased_throughput = self.tokens_per_s / self.base_tokens_per_s
        reduced_latency = self.base_latency_ms / self.latency_ms
        return self.accuracy * reduced_latency * increased_throughput * (1 + self.nki_flop_share)


@dataclass(frozen=True)
class Figures:
    """One run of a harness. What it does not report is None, and never a guess."""

    accuracy: Accuracy
    latency_ms: float | None
    """Of a whole answer, end to end; of several prompts the mean."""
    tokens_per_s: float | None
    """Throughput; of several prompts the mean."""
    first_token_ms: float | None = None
    per_token_ms: float | None = None
    nki_flop_share: float | None = None
    """0 to 1; of several prompts the mean."""
    prompts: tuple[PromptScore, ...] = ()
    """Of a harness that scores."""
    notes: tuple[str, ...] = ()
    """What a person should know of these numbers, a line each."""
    answer_tokens: float | None = None
    """Of one answer, on the average, where the harness counts them and does not say how many there are to be."""

    @property
    def score(self) -> float | None:
        """Over all prompts together, one added after the other as the challenge does, where `sum` would make up for
        what is rounded off from Python 3.12 on; None for a harness that does not score."""
        return reduce(add, (prompt.score for prompt in self.prompts)) if self.prompts else None


@dataclass(frozen=True)
class Gain:
    """With the kernels against without, above 1 where they help; None where either run does not report it."""

    score: float | None
    latency: float | None
    """Baseline's latency over that with the kernels."""
    first_token: float | None
    per_token: float | None
    throughput: float | None
    """Tokens a second with the kernels over the baseline's."""


def gain(before: Figures, after: Figures) -> Gain:
    return Gain(
        _ratio(after.score, before.score),
        _ratio(before.latency_ms, after.latency_ms) if answers_are_as_long(before, after) else None,
        _ratio(before.first_token_ms, after.first_token_ms),
        _ratio(before.per_token_ms, after.per_token_ms),
        _ratio(after.tokens_per_s, before.tokens_per_s),
    )


def answers_are_as_long(before: Figures, after: Figures) -> bool:
    """As far as it is known: whoever says less is done sooner."""
    if before.answer_tokens is None or after.answer_tokens is None:
        return True
    return abs(after.answer_tokens / before.answer_tokens - 1) <= _AS_LONG


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
