"""Which of several proposers is to make the next plan: by what its plans gained for what they cost.

The measure is the logarithm of the speed-up, which adds up over rounds, for each dollar. Time costs dollars too, at a
rate that the user may name: so what asks no model is not free, no divisor is zero, and what is weighed against
each other are two costs with a market price, not speed-up against money, which nobody can price for all.

A try wins or it does not. The chance of that is drawn from what is known of it (a beta distribution: Thompson
sampling), so that what was seldom tried is tried now and then; what a win brings and what a try costs are
averages. What is known of a proposer is, weighed: its tries in this run, those long ago less, since gains dry up as a
kernel nears its bound; its tries in earlier runs against the same bottleneck; and else what is known of all the others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

FADING = 0.9
"""What a round leaves of the weight of the tries before it."""
MOST_BEFORE = 4.0
"""Earlier runs, however many, weigh as much as so many tries of this one."""
UNKNOWN_WINS, UNKNOWN_TRIES = 1.0, 2.0
"""Of whom nothing is known: as if one try of two had won ..."""
UNKNOWN_GAIN = math.log(1.1)
"""... 1.1x."""


@dataclass(frozen=True)
class Spent:
    """What a try, or several, took."""

    usd: float = 0.0
    seconds: float = 0.0
    """From plan to decision, evaluations included."""

    def __post_init__(self) -> None:
        if not (self.usd >= 0 and self.seconds >= 0):
            raise ValueError(f"nothing costs less than nothing: {self}")


@dataclass(frozen=True)
class Pull:
    """One try of a proposer, and what came of it."""

    proposer: str
    round: int
    bottleneck: str
    """What limited the kernel that was to be changed."""
    log_speedup: float
    """Natural logarithm, over the best before it; 0 where it became no new best."""
    spent: Spent


@dataclass(frozen=True)
class Track:
    """What came of several tries. Counts are whole only where nothing is weighed."""

    pulls: float = 0.0
    wins: float = 0.0
    log_speedup: float = 0.0
    usd: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Track) -> Track:
        return Track(
            self.pulls + other.pulls, self.wins + other.wins, self.log_speedup + other.log_speedup,
            self.usd + other.usd, self.seconds + other.seconds,
        )  # fmt: skip

    def __mul__(self, weight: float) -> Track:
        return Track(
            weight * self.pulls, weight * self.wins, weight * self.log_speedup, weight * self.usd,
            weight * self.seconds,
        )  # fmt: skip

    @property
    def speedup(self) -> float:
        """Of all its wins together."""
        return math.exp(self.log_speedup)


def track_of(pulls: Iterable[Pull], fading: float = 1.0, round: int = 0) -> Track:
    """`fading`: what each round up to `round` leaves of a try's weight; 1 counts all alike."""
    total = Track()
    for pull in pulls:
        won = 1.0 if pull.log_speedup > 0 else 0.0
        one = Track(1.0, won, pull.log_speedup, pull.spent.usd, pull.spent.seconds)
        total += one if fading == 1.0 else one * fading ** max(0, round - pull.round - 1)
    return total


def tracks_of(pulls: Iterable[Pull]) -> dict[tuple[str, str], Track]:
    """By bottleneck and proposer, in the order in which they were first tried."""
    found: dict[tuple[str, str], Track] = {}
    for pull in pulls:
        key = pull.bottleneck, pull.proposer
        found[key] = found.get(key, Track()) + track_of([pull])
    return found


@dataclass(frozen=True)
class Arm:
    """A proposer that may be chosen."""

    name: str
    typical: Spent
    """What a round of it takes as far as is known without one: by the price list. Counts as one try, corrected by how
    far off it was for those that were tried."""
    predicted: float | None = None
    """The logarithm of the speed-up that it promises for this very kernel; None where it cannot say. A price for
    what there is to gain now says more than what was gained before."""


@dataclass(frozen=True)
class Draw:
    """What was thought of an arm when one was chosen."""

    proposer: str
    worth: float
    """By which they are ranked: drawn chance x gain / cost."""
    chance: float
    """That a try wins, as it was drawn."""
    gain: float
    """What a win brings: the natural logarithm of a speed-up."""
    cost_usd: float
    """Of a try, its time included."""


@dataclass(frozen=True)
class CostAware:
    """The rule by which one is chosen."""

    usd_per_hour: float = 3.0
    """What an hour of the run costs. An assumption; whoever knows what his machine costs says so."""

    def __post_init__(self) -> None:
        if not (self.usd_per_hour > 0 and math.isfinite(self.usd_per_hour)):
            raise ValueError(f"an hour costs something: {self.usd_per_hour}")

    def cost_usd(self, spent: Spent) -> float:
        return spent.usd + self.usd_per_hour * spent.seconds / 3600

    def draws(
        self, arms: Sequence[Arm], pulls: Sequence[Pull], before: Mapping[str, Track], round: int, seed: str
    ) -> tuple[Draw, ...]:
        """The best first. `pulls`: of this run; `before`: of earlier runs, by proposer, against the bottleneck of now.

        The same arguments give the same answer, on any machine. Raises ValueError without arms.
        """
        if not arms:
            raise ValueError("there is nobody to choose")
        dice = random.Random(seed)
        known = {
            arm.name: track_of((pull for pull in pulls if pull.proposer == arm.name), FADING, round)
            + _capped(before.get(arm.name, Track()))
            for arm in arms
        }
        # What one that predicts came to says nothing of those that do not.
        others = [arm for arm in arms if arm.predicted is None]
        chance, gain = _pooled([known[arm.name] for arm in others])
        dearer = self._dearer([(arm.typical, known[arm.name]) for arm in others])
        # In the order of their names: which of them are listed first must not matter.
        found = []
        for arm in sorted(arms, key=lambda arm: arm.name):
            typical_usd = self.cost_usd(arm.typical) * (dearer if arm.predicted is None else 1.0)
            found.append(self._draw(arm, known[arm.name], chance, gain, typical_usd, dice))
        return tuple(sorted(found, key=lambda draw: (-draw.worth, draw.proposer)))

    def _dearer(self, known: Sequence[tuple[Spent, Track]]) -> float:
        """How many times what is typical a try took. A price list knows which model is dearer, not how long this
        kernel's prompts are: without this, whoever is tried first looks cheap for ever."""
        if not known:
            return 1.0
        one = sum(self.cost_usd(typical) for typical, _ in known) / len(known)
        took = sum(self._total_usd(track) for _, track in known)
        expected = sum(track.pulls * self.cost_usd(typical) for typical, track in known)
        return (one + took) / (one + expected) if one > 0 else 1.0

    def _total_usd(self, track: Track) -> float:
        return self.cost_usd(Spent(track.usd, track.seconds))

    def _draw(
        self, arm: Arm, known: Track, chance: float, gain: float, typical_usd: float, dice: random.Random
    ) -> Draw:
        won = UNKNOWN_TRIES * chance + known.wins
        lost = UNKNOWN_TRIES * (1 - chance) + max(0.0, known.pulls - known.wins)
        drawn = dice.betavariate(won, lost)
        if arm.predicted is not None:
            brings = max(0.0, arm.predicted)
        else:
            brings = (gain + known.log_speedup) / (1 + known.wins)
        cost = max((typical_usd + self._total_usd(known)) / (1 + known.pulls), 1e-6)
        return Draw(arm.name, drawn * brings / cost, drawn, brings, cost)


def _capped(before: Track) -> Track:
    return before * (MOST_BEFORE / before.pulls) if before.pulls > MOST_BEFORE else before


def _pooled(tracks: Sequence[Track]) -> tuple[float, float]:
    """The chance of a win, and what it brings, of one of whom nothing is known but what is known of others."""
    known = sum(tracks, Track())
    chance = (UNKNOWN_WINS + known.wins) / (UNKNOWN_TRIES + known.pulls)
    return chance, (UNKNOWN_GAIN + known.log_speedup) / (1 + known.wins)
