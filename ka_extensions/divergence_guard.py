"""Keep, go on from, ignore or revert: what the loop does with a measured candidate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    """Of a right kernel; as the `Outcome` of that value."""

    IMPROVED = "improved"
    """Faster than the best beyond noise: the new best and the next parent."""
    KEPT = "kept"
    """Not faster than the best, not far off: no new best, but the next parent, for a few steps at most."""
    NO_IMPROVEMENT = "no_improvement"
    """Not faster than the best, not far off, and no exploration is allowed: the parent stays."""
    REVERTED = "reverted"
    """Far slower than the best, or one step too many without improvement: the next parent is the best."""
    FAILED = "failed"
    """No latency at all: the parent stays."""


@dataclass(frozen=True)
class Decision:
    """A verdict and the numbers that led to it."""

    verdict: Verdict
    candidate_us: float | None
    best_us: float
    threshold_us: float
    """The latency on the other side of which the verdict would have been different."""
    reason: str

    @property
    def improved(self) -> bool:
        return self.verdict is Verdict.IMPROVED


@dataclass(frozen=True)
class DivergenceGuard:
    """Improve when faster than the best beyond noise; revert when slower than it by more than `revert_above`.

    Both are fractions: 0.5 reverts above 1.5x the best; noise 0.01 wants 1 % less than the best. In between, the next
    round goes on from the candidate, an exploration step: a way may lead over a slower kernel. After `max_exploration`
    of them in a row without an improvement it goes back to the best; 0 allows none, and the parent stays what it is.
    """

    revert_above: float = 0.5
    noise: float = 0.01
    max_exploration: int = 0

    def __post_init__(self) -> None:
        if not self.revert_above > 0:
            raise ValueError(f"revert_above {self.revert_above} must be > 0")
        if not 0 <= self.noise < 1:
            raise ValueError(f"noise {self.noise} must be in [0, 1)")
        if self.max_exploration < 0:
            raise ValueError(f"max_exploration {self.max_exploration} must be >= 0")

    def decide(self, candidate_us: float | None, best_us: float, noise: float = 0.0, away: int = 0) -> Decision:
        """`noise`: of these two measurements, as a fraction; the wider of it and the guard's own counts.

        `away`: how many steps without improvement led from the best to the candidate's parent.
        """
        band = max(self.noise, noise)
        improve_below = best_us * (1 - band)
        revert_from = best_us * (1 + self.revert_above)
        too_far = 0 < self.max_exploration <= away + 1
        back = f"{away + 1} steps without improvement (limit {self.max_exploration}): back to the best"
        if candidate_us is None:
            if too_far and away > 0:
                return Decision(Verdict.REVERTED, None, best_us, improve_below, f"no latency was measured; {back}")
            return Decision(Verdict.FAILED, None, best_us, improve_below, "no latency was measured")
        if candidate_us < improve_below:
            gain = best_us / candidate_us
            return Decision(
                Verdict.IMPROVED,
                candidate_us,
                best_us,
                improve_below,
                f"{candidate_us:,.1f} µs is {gain:.3f}x faster than the best {best_us:,.1f} µs",
            )
        if candidate_us > revert_from:
            return Decision(
                Verdict.REVERTED,
                candidate_us,
                best_us,
                revert_from,
                f"{candidate_us:,.1f} µs is {100 * (candidate_us / best_us - 1):.0f} % slower than the best "
                f"{best_us:,.1f} µs (limit {100 * self.revert_above:.0f} %)",
            )
        noise_band = f"best less a noise band of {100 * band:.2g} %"
        not_below = f"{candidate_us:,.1f} µs is not below {improve_below:,.1f} µs ({noise_band})"
        if self.max_exploration == 0:
            return Decision(Verdict.NO_IMPROVEMENT, candidate_us, best_us, improve_below, not_below)
        if too_far:
            return Decision(Verdict.REVERTED, candidate_us, best_us, improve_below, f"{not_below}; {back}")
        step = f"going on from it all the same, exploration step {away + 1} of at most {self.max_exploration}"
        return Decision(Verdict.KEPT, candidate_us, best_us, improve_below, f"{not_below}; {step}")


def steps_away(away: int, decisions: Iterable[Decision]) -> int:
    """How far from the best the next parent is, after a round that began `away` steps from it.

    Of several decisions in one round an improvement counts first, then a kernel to go on from.
    """
    verdicts = {decision.verdict for decision in decisions}
    if Verdict.IMPROVED in verdicts:
        return 0
    if Verdict.KEPT in verdicts:
        return away + 1
    if Verdict.REVERTED in verdicts:
        return 0
    return away + 1 if away > 0 else 0
