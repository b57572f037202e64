"""What of a round is worth evaluating: of kernels that are one program the first; for a device, the best by simulation.

Predictions cost none of a device's time. They are corrected by what the device showed of earlier ones, and believed as
far as the interval of their difference goes: what may still be the best goes to the device, which decides.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.evaluation import CompileFailed, Duplicate, Implausible, Incorrect, Measured, Predicted, microseconds
from accelopt_core.loop.lane import Lane
from accelopt_core.loop.steps import Steps
from accelopt_core.ports import Choice, Journal, Simulator
from ka_extensions.residuals import Correction, Residual

BEST_BY_SIMULATION = 3
"""Kernels of a round that a device chooses from, at least. Of the settings of a measured kernel the best by simulation
may be several percent slower than the fastest, the best of three seldom is (docs/timing_model.md)."""


@dataclass(frozen=True)
class Guide:
    """What a loop knows of its kernels before the target does."""

    simulator: Simulator
    tie: float
    """Of the slower one's predicted latency: from this difference on predictions are believed to be in order."""
    prices: bool
    """For a device. Where the target is the simulated machine itself, it would say nothing new."""
    earlier: tuple[Residual, ...] = ()
    """Of other runs on the same machine with the same tools."""
    least: int = BEST_BY_SIMULATION
    """Kernels of a round that go to the device in any case: as many as it times at once, where those are more."""


def residuals(attempts: Iterable[Attempt]) -> Iterator[Residual]:
    """Of those that were predicted, right and timed."""
    for attempt in attempts:
        predicted, latency_us = attempt.predicted, attempt.latency_us
        if predicted is not None and latency_us is not None:
            yield Residual.of(predicted.bound_by, predicted.latency_us, latency_us)


def may_be_best(latencies_us: Sequence[float], tie: float, least: int) -> list[bool]:
    """Of predicted latencies: which cannot be told from the best, and the `least` best in any case (all, where there
    are no more; of equal ones the earlier)."""
    if not latencies_us:
        return []
    order = sorted(range(len(latencies_us)), key=lambda number: latencies_us[number])
    rank = {number: place for place, number in enumerate(order)}
    best_us = latencies_us[order[0]]
    return [rank[number] < least or us * (1 - tie) <= best_us for number, us in enumerate(latencies_us)]


_SETTLED = (CompileFailed, Incorrect, Implausible, Duplicate, Measured)
"""What the same program would come to again. A time-out or a crash may be the machine's fault."""


class Screening:
    """Of one round. The same lanes with the same kernels come to the same, whatever order they were written in."""

    def __init__(self, guide: Guide, correction: Correction, round: int, journal: Journal, steps: Steps) -> None:
        self._guide = guide
        self._correction = correction
        self._round = round
        self._journal = journal
        self._steps = steps
        self._choices = 0
        self._free: list[Lane] = []
        """Whose kernel is no other one's program."""
        self._same_as: dict[str, Lane] = {}
        """By name of a lane, the lane before it whose kernel, not evaluated yet, is the same program."""

    def tell_duplicates(self, lanes: Sequence[Lane], file: Callable[[Attempt], None]) -> None:
        """Settles what was written and is a program that this round has judged. Of several lanes with one program that
        is not judged yet, the first in order is to be evaluated, and the others wait for what it comes to."""
        waiting = _waiting(lanes)
        tries = sorted((each for lane in lanes for each in lane.tries), key=lambda each: (each.number, each.lane))
        judged = [each for each in tries if isinstance(each.evaluation, _SETTLED)]
        written = [lane.written for lane in waiting] + [attempt.candidate for attempt in judged]
        program = self._told_apart([candidate for candidate in written if candidate is not None], len(lanes))
        known: dict[Hashable, Attempt] = {}
        for attempt in judged:
            if attempt.candidate is not None:
                known.setdefault(program[attempt.candidate.source], attempt)
        first: dict[Hashable, Lane] = {}
        self._same_as = {}
        for lane in waiting:
            assert lane.written is not None
            which = program[lane.written.source]
            if which in known:
                lane.settle(_duplicate_of(known[which]), self._steps, file)
            elif first.setdefault(which, lane) is not lane:
                self._same_as[lane.place.lane] = first[which]
        self._free = list(first.values())

    def _told_apart(self, candidates: Sequence[Candidate], lanes: int) -> Mapping[str, Hashable]:
        """By source what is the same for the same program. A lane by itself has nobody to write the same."""
        if lanes == 1:
            return {each.source: each.content_hash for each in candidates}
        programs = self._guide.simulator.programs([each.source for each in candidates])
        return {each.source: programs[each.source] or each.content_hash for each in candidates}

    def chosen(self, lanes: Sequence[Lane]) -> list[Lane]:
        """Those to evaluate now, in order. What is not among them may be the next time, when others failed."""
        if not self._guide.prices or not self._free:
            return self._free
        self._choices += 1
        made = self._journal.chosen(self._round, self._choices, lambda filed: self._choose(lanes, filed))
        choices = {each.kernel: each for each in made}
        sent = []
        for lane in self._free:
            choice = choices[_kernel(lane)]
            lane.predicted = choice.predicted
            if choice.sent:
                sent.append(lane)
        return sent

    def _choose(self, lanes: Sequence[Lane], filed: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """What was chosen before an interruption stays chosen; what is new beside it is chosen from as ever."""
        before = {each.kernel: each for each in filed}
        if {_kernel(lane) for lane in self._free} <= set(before):
            return filed
        known: dict[str, Predicted | None] = {
            _kernel(lane): lane.predicted for lane in self._free if lane.predicted is not None
        }
        known |= {each.kernel: each.predicted for each in filed}
        sources = {_kernel(lane): lane.written.source for lane in self._free if lane.written is not None}
        said = self._guide.simulator.predicted([source for kernel, source in sources.items() if kernel not in known])
        predicted = {kernel: known[kernel] if kernel in known else said[source] for kernel, source in sources.items()}
        us = {kernel: self._corrected_us(each) for kernel, each in predicted.items() if each is not None}
        right_us = self._measured_us(lanes)
        worth = may_be_best([*right_us, *us.values()], self._guide.tie, self._guide.least)
        send = dict(zip(us, worth[len(right_us) :]))  # what has no price goes as well: only the device can tell
        self._send_one_uncontested(send, predicted, us, lanes)
        return tuple(
            Choice(kernel, each, (kernel in before and before[kernel].sent) or send.get(kernel, True))
            for kernel, each in predicted.items()
        )

    def _send_one_uncontested(
        self,
        send: dict[str, bool],
        predicted: Mapping[str, Predicted | None],
        us: Mapping[str, float],
        lanes: Sequence[Lane],
    ) -> None:
        """Beside what rests on a contested fact the device times the best kernel that rests on none."""
        plain = [kernel for kernel in send if (price := predicted[kernel]) is not None and not price.contested]
        timed = [lane.predicted for lane in lanes if lane.measured is not None]
        if any(send[kernel] for kernel in plain) or any(each is not None and not each.contested for each in timed):
            return
        if plain:
            send[min(plain, key=lambda kernel: us[kernel])] = True

    def close(self, lanes: Sequence[Lane], file: Callable[[Attempt], None]) -> None:
        """Nothing is sent any more: whatever waits has others before it."""
        measured_us = self._measured_us(lanes)
        for lane in _waiting(lanes):
            lane.predicted = lane.predicted or self._same_as[lane.place.lane].predicted
            assert lane.predicted is not None, "what has no price is sent"
            us = self._corrected_us(lane.predicted)
            better_us = [each for each in measured_us if each < us]
            first = f" (from {microseconds(min(better_us))})" if better_us else ""
            message = (
                f"predicted {microseconds(us)}, {len(better_us)} others were better{first}: not timed on the device"
            )
            lane.outranked(message, self._steps, file)

    def _measured_us(self, lanes: Sequence[Lane]) -> list[float]:
        """What is predicted of those that the device found right."""
        right = [lane.predicted for lane in lanes if lane.measured is not None]
        return [self._corrected_us(each) for each in right if each is not None]

    def _corrected_us(self, predicted: Predicted) -> float:
        return predicted.latency_us * self._correction.factor(predicted.bound_by)


def _waiting(lanes: Sequence[Lane]) -> list[Lane]:
    return [lane for lane in lanes if lane.is_under_way and lane.written is not None]


def _kernel(lane: Lane) -> str:
    assert lane.written is not None
    return lane.written.content_hash


def _duplicate_of(attempt: Attempt) -> Duplicate:
    if isinstance(attempt.evaluation, Duplicate):
        return attempt.evaluation
    return Duplicate(attempt.id, f"{attempt.summary} (in this round)")
