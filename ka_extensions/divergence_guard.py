"""Keep, ignore or revert: what the loop does with a measured candidate."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    IMPROVED = "improved"
    """Faster than the best beyond noise: the new best and the next parent."""
    NO_IMPROVEMENT = "no_improvement"
    """Not faster than the best, not far off: the parent stays."""
    REVERTED = "reverted"
    """Slower than the best by more than the limit: the next parent is the best."""
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
    """Revert when slower than the best by more than `revert_above`; improve when beyond noise.

    Both are fractions: 0.5 reverts above 1.5x the best; noise 0.01 wants 1 % less than the best.
    """

    revert_above: float = 0.5
    noise: float = 0.01

    def __post_init__(self) -> None:
        if not self.revert_above > 0:
            raise ValueError(f"revert_above {self.revert_above} must be > 0")
        if not 0 <= self.noise < 1:
            raise ValueError(f"noise {self.noise} must be in [0, 1)")

    def decide(self, candidate_us: float | None, best_us: float, spread: float = 0.0) -> Decision:
        """`spread` is the larger measured spread of the two kernels; the wider of it and `noise` counts."""
        band = max(self.noise, spread)
        improve_below = best_us * (1 - band)
        revert_from = best_us * (1 + self.revert_above)
        if candidate_us is None:
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
        return Decision(
            Verdict.NO_IMPROVEMENT,
            candidate_us,
            best_us,
            improve_below,
            f"{candidate_us:,.1f} µs is not below {improve_below:,.1f} µs (best less a noise band of "
            f"{100 * band:.2g} %)",
        )
