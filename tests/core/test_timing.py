"""Two kernels timed in turns: what drifts, jumps or jitters decides nothing, and a real gain is seen."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from accelopt_core.judging.timing import TURNS, PairedTiming, compare, time_paired
from accelopt_core.ports import EvaluationLimits

LIMITS = EvaluationLimits(iterations=10, warmup=1, remeasure=2)


class Device:
    """Executes for as long as `slowness` says, a factor that may depend on how much it has executed."""

    def __init__(self, slowness: Callable[[int], float]) -> None:
        self.executions = 0
        self._slowness = slowness

    def kernel(self, us: float) -> Callable[[int, float], Sequence[float]]:
        def block(count: int, left_s: float) -> Sequence[float]:
            assert left_s > 0
            return [us * self._next() for _ in range(count)]

        return block

    def _next(self) -> float:
        self.executions += 1
        return self._slowness(self.executions)

    def paired(self, candidate_us: float, incumbent_us: float) -> PairedTiming:
        return time_paired(self.kernel(candidate_us), self.kernel(incumbent_us), LIMITS, lambda step, detail: None)


def _jitter(seed: int, sigma: float) -> Callable[[int], float]:
    source = random.Random(seed)
    return lambda number: 1 + source.gauss(0, sigma)


DRIFT: dict[str, Callable[[], Callable[[int], float]]] = {
    "steady": lambda: lambda number: 1.0,
    "each execution slower than the last": lambda: lambda number: 1 + 0.002 * number,
    "each execution faster than the last": lambda: lambda number: 1 / (1 + 0.002 * number),
    "throttled from the middle on": lambda: lambda number: 1.3 if number > 11 else 1.0,
    "a hiccup in one execution": lambda: lambda number: 2.0 if number == 7 else 1.0,
    "jitter of half a percent": lambda: _jitter(3, 0.005),
}


@pytest.mark.parametrize("drift", DRIFT)
def test_an_equal_kernel_does_not_win(drift: str) -> None:
    result = Device(DRIFT[drift]()).paired(100.0, 100.0)
    assert abs(result.ratio - 1) < 0.005 and result.ratio >= 1 - max(result.noise, 0.001)


@pytest.mark.parametrize("drift", DRIFT)
@pytest.mark.parametrize("gain", [0.03, 0.1])
def test_a_real_gain_is_not_hidden(drift: str, gain: float) -> None:
    result = Device(DRIFT[drift]()).paired(100.0 * (1 - gain), 100.0)
    assert result.ratio == pytest.approx(1 - gain, abs=0.006)
    assert result.ratio < 1 - result.noise


def test_equal_kernels_on_a_jittery_device_rarely_seem_a_percent_apart() -> None:
    wins = 0
    for seed in range(300):
        paired = Device(_jitter(seed, 0.01)).paired(100.0, 100.0)
        wins += paired.ratio < 1 - max(0.01, paired.noise)  # as the guard decides, which has a band of its own
    assert wins <= 6, "2 % of the time at most, with jitter as wide as the band"


def test_a_noisy_contest_is_held_again_and_the_calmest_counts() -> None:
    wild = _jitter(1, 0.2)
    device = Device(lambda number: wild(number) if number <= 2 * (2 * TURNS + 1) else 1.0)
    said: list[str] = []
    result = time_paired(device.kernel(97), device.kernel(100), LIMITS, lambda step, detail: said.append(detail))
    assert (result.ratio, result.noise) == (pytest.approx(0.97), pytest.approx(0.0, abs=1e-12))
    assert len(said) == 1 and said[0].endswith("is above 1 %: again")


def test_a_time_that_is_not_positive_wins_nothing() -> None:
    ratio, noise = compare([0.0, 1.0], [1.0, 1.0, 1.0])
    assert ratio == float("inf") and noise == 0.0
