"""One candidate's way through a round: written, evaluated, repaired, until it is right or its tries are used up.

A round with several lanes runs each in a thread of its own. They share nothing that changes, and file nothing
themselves: what they tried is handed to the loop, which alone writes the journal.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice, product

from accelopt_core.candidate import Attempt, Candidate, Plan, attempt_id
from accelopt_core.evaluation import Evaluation, Implausible, Measured, Step, explain
from accelopt_core.loop.steps import Place, Steps, Stop
from accelopt_core.ports import BudgetExhausted, ModelError
from accelopt_core.proposer import CannotRepair, Executor, Feedback, RoundContext, UnusableReply
from ka_extensions.outcome import Outcome

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MOST_AT_ONCE = len(LETTERS)
MOST_LANES = len(LETTERS) ** 2


def lane_names(count: int) -> tuple[str, ...]:
    """In alphabetical order: none for a single lane, letters for several, two of them where one does not suffice."""
    if count == 1:
        return ("",)
    if count <= len(LETTERS):
        return tuple(LETTERS[:count])
    return tuple(map("".join, islice(product(LETTERS, repeat=2), count)))


@dataclass
class Lane:
    """`plan` is None where no usable one was made: such a lane ends before it begins."""

    place: Place
    context: RoundContext
    plan: Plan | None
    proposer: str = ""
    """Who was to plan it, where several take turns."""
    seconds: float = 0.0
    """At work on it so far."""
    lanes: int = 1
    """How many the round has."""
    last: Attempt | None = None
    """The newest attempt, not filed yet: its decision is still to come."""
    candidate: Candidate | None = None
    result: Evaluation | None = None
    tries: list[Attempt] = field(default_factory=list)
    """Every attempt of this lane, oldest first."""
    stopped_by: BaseException | None = field(default=None, repr=False)

    @property
    def measured(self) -> Measured | None:
        return self.result if isinstance(self.result, Measured) else None

    def run(
        self,
        executor: Executor,
        evaluate: Callable[[Place, Candidate, Sequence[Attempt]], Evaluation],
        steps: Steps,
        file: Callable[[Attempt], None],
        max_repairs: int,
        may_repair: Callable[[Outcome], bool] = lambda fault: True,
    ) -> None:
        """`evaluate` is handed the lane's earlier attempts too, and `file` each attempt but the last.

        `may_repair`: whether another try is worth it after a fault of this kind. Raises Stop, BudgetExhausted and what
        `evaluate` raises.
        """
        plan = self.plan
        assert plan is not None
        feedback: tuple[Feedback, ...] = ()
        for number in range(1, max_repairs + 2):
            if self.last is not None and not may_repair(self.last.outcome):
                self.told_no_repair(steps)
                return
            repair = f"repair {number - 1} of {max_repairs}" if number > 1 else ""
            steps.begin(self.place, Step.EXECUTE, repair)
            try:
                source = executor.execute(self.context, plan, feedback)
            except UnusableReply as unusable:
                message = f"no kernel in the reply: {unusable}"
                steps.note(self.place, Step.EXECUTE, message)
                self._hold(self.tried(number, Outcome.NO_KERNEL, message), file)
                feedback += (Feedback(unusable.reply, str(unusable)),)
                continue
            except BudgetExhausted:
                raise
            except (CannotRepair, ModelError) as error:
                steps.note(self.place, Step.EXECUTE, str(error))
                if isinstance(error, ModelError):
                    self._hold(self.tried(number, Outcome.MODEL_FAILED, str(error)), file)
                elif self.last is None:
                    self._hold(self.tried(number, Outcome.NO_KERNEL, str(error)), file)
                return
            name = attempt_id(self.place.round, self.place.lane, number)
            candidate = Candidate(name, source, self.context.parent.id, plan.id)
            steps.check(self.place)
            result = evaluate(self.place, candidate, tuple(self.tries))
            self.candidate, self.result = candidate, result
            message = explain(result)
            self._hold(self.tried(number, Outcome(result.kind), message, candidate, result), file)
            if isinstance(result, (Measured, Implausible)):
                return
            steps.note(self.place, Step.VERIFY, message)
            feedback += (Feedback(source, message),)

    def told_no_repair(self, steps: Steps) -> None:
        assert self.last is not None
        steps.note(self.place, Step.EXECUTE, f"not repaired: in this run it seldom helped after {self.last.outcome}")

    def tried(
        self, number: int, outcome: Outcome, summary: str, candidate: Candidate | None = None,
        result: Evaluation | None = None,
    ) -> Attempt:  # fmt: skip
        place = self.place
        return Attempt(
            place.round, number, self.context.parent.id, self.plan, candidate, result, outcome, summary,
            place.lane, self.lanes, proposer=self.proposer,
        )  # fmt: skip

    def _hold(self, entry: Attempt, file: Callable[[Attempt], None]) -> None:
        if self.last is not None:
            file(self.last)
        self.last = entry
        self.tries.append(entry)


def run_side_by_side(lanes: Sequence[Lane], run: Callable[[Lane, Callable[[Attempt], None]], None], steps: Steps,
                     file: Callable[[Attempt], None], at_once: int) -> None:  # fmt: skip
    """Runs each lane in a thread, at most `at_once` at a time, and files in this one what they try, as it comes.

    When all are through, what stopped a lane is in its `stopped_by`. An interrupt of this thread leaves them behind:
    they are daemons, and end with the target they wait for.
    """
    said: queue.SimpleQueue[Attempt | Lane] = queue.SimpleQueue()
    turns = threading.Semaphore(at_once)

    def go(lane: Lane) -> None:
        try:
            with turns:
                run(lane, said.put)
        except BaseException as error:  # not this thread's to handle: the loop looks at it and raises it again
            lane.stopped_by = error
            if not isinstance(error, (Stop, BudgetExhausted)):
                steps.halt()
        finally:
            said.put(lane)

    for lane in lanes:
        threading.Thread(target=go, args=(lane,), name=f"lane {lane.place.lane}", daemon=True).start()
    under_way = len(lanes)
    while under_way:
        item = said.get()
        if isinstance(item, Attempt):
            file(item)
        else:
            under_way -= 1
