"""One candidate's way through a round: written, evaluated, repaired, until it is right or its tries are used up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from accelopt_core.candidate import Attempt, Candidate, Plan, attempt_id
from accelopt_core.evaluation import Evaluation, Implausible, Measured, Predicted, Step, explain
from accelopt_core.loop.steps import Place, Steps
from accelopt_core.ports import BudgetExhausted, ModelError
from accelopt_core.proposer import CannotRepair, Executor, Feedback, RoundContext, UnusableReply
from ka_extensions.outcome import Outcome


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
    feedback: tuple[Feedback, ...] = ()
    """One for each failed try."""
    written: Candidate | None = None
    """What is to be evaluated next."""
    predicted: Predicted | None = None
    """Of the kernel that was written last."""
    is_through: bool = False
    stopped_by: BaseException | None = field(default=None, repr=False)

    @property
    def measured(self) -> Measured | None:
        return self.result if isinstance(self.result, Measured) else None

    @property
    def failed_before(self) -> tuple[Feedback, ...]:
        """The tries that failed before the last one."""
        return self.feedback if self.measured is not None else self.feedback[:-1]

    @property
    def is_under_way(self) -> bool:
        """Is a kernel still to be written or evaluated?"""
        return not self.is_through and self.stopped_by is None

    def write(
        self,
        executor: Executor,
        steps: Steps,
        file: Callable[[Attempt], None],
        max_repairs: int,
        may_repair: Callable[[Outcome], bool] = lambda fault: True,
    ) -> None:
        """On to the next kernel, which is in `written` then; where there is none, the lane is through.

        `file` is handed each attempt but the last. `may_repair`: whether another try is worth it after a fault of this
        kind. Raises Stop and BudgetExhausted.
        """
        plan = self.plan
        assert plan is not None and self.written is None
        while (number := len(self.tries) + 1) <= max_repairs + 1:
            if self.last is not None and not may_repair(self.last.outcome):
                self.told_no_repair(steps)
                break
            repair = f"repair {number - 1} of {max_repairs}" if number > 1 else ""
            steps.begin(self.place, Step.EXECUTE, repair)
            try:
                source = executor.execute(self.context, plan, self.feedback)
            except UnusableReply as unusable:
                message = f"no kernel in the reply: {unusable}"
                steps.note(self.place, Step.EXECUTE, message)
                self._hold(self.tried(number, Outcome.NO_KERNEL, message), file)
                self.feedback += (Feedback(unusable.reply, str(unusable)),)
                continue
            except BudgetExhausted:
                raise
            except (CannotRepair, ModelError) as error:
                steps.note(self.place, Step.EXECUTE, str(error))
                if isinstance(error, ModelError):
                    self._hold(self.tried(number, Outcome.MODEL_FAILED, str(error)), file)
                    steps.check_model(error)
                elif self.last is None:
                    self._hold(self.tried(number, Outcome.NO_KERNEL, str(error)), file)
                break
            name = attempt_id(self.place.round, self.place.lane, number)
            self.written = Candidate(name, source, self.context.parent.id, plan.id)
            self.predicted = None
            return
        self.is_through = True

    def judge(
        self,
        evaluate: Callable[[Place, Candidate, Sequence[Attempt]], Evaluation],
        steps: Steps,
        file: Callable[[Attempt], None],
    ) -> None:
        """Evaluates what was written. `evaluate` is handed the lane's earlier attempts too; raises what it raises."""
        assert self.written is not None
        steps.check(self.place)
        self.settle(evaluate(self.place, self.written, tuple(self.tries)), steps, file)

    def settle(self, result: Evaluation, steps: Steps, file: Callable[[Attempt], None]) -> None:
        """What was written came to this: the lane is through, or another try is to be written."""
        candidate, self.written = self.written, None
        self.candidate, self.result = candidate, result
        message = explain(result)
        self._hold(self.tried(len(self.tries) + 1, Outcome(result.kind), message, candidate, result), file)
        if isinstance(result, (Measured, Implausible)):
            self.is_through = True
            return
        assert candidate is not None
        steps.note(self.place, Step.VERIFY, message)
        self.feedback += (Feedback(candidate.source, message),)

    def outranked(self, message: str, steps: Steps, file: Callable[[Attempt], None]) -> None:
        """What was written is not evaluated: others of the round look better."""
        self.candidate, self.written, self.result, self.is_through = self.written, None, None, True
        steps.note(self.place, Step.VERIFY, message)
        self._hold(self.tried(len(self.tries) + 1, Outcome.OUTRANKED, message, self.candidate), file)

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
            place.lane, self.lanes, predicted=None if candidate is None else self.predicted, proposer=self.proposer,
        )  # fmt: skip

    def _hold(self, entry: Attempt, file: Callable[[Attempt], None]) -> None:
        if self.last is not None:
            file(self.last)
        self.last = entry
        self.tries.append(entry)
