"""Several proposers that take turns: models, and the catalogue beside them.

Before each plan one is chosen by what it gained for what it cost (`ka_extensions.bandit`). Every choice is kept before
it is acted on, so that a round that is gone through again asks whom it asked before. One that cannot answer gives way
to the others; one that never will be able to, with its key refused or its budget used up, is out for the run.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from accelopt_core.candidate import Attempt, Candidate, Plan
from accelopt_core.evaluation import Evaluation, Measured
from accelopt_core.optimization_memory import Experience
from accelopt_core.ports import BudgetExhausted, ModelError, ModelUnusable
from accelopt_core.proposer import CannotRepair, Feedback, NothingToPlan, Proposer, RoundContext, UnusablePlan
from ka_extensions.attempt_history import AttemptHistory
from ka_extensions.bandit import Arm, CostAware, Draw, Pull, Spent, Track
from ka_extensions.divergence_guard import Decision
from ka_extensions.reflexion import Reflexion

MOST_FAILURES = 2
"""In a row: a model that could not answer so often is not asked again."""


@dataclass(frozen=True)
class Contender:
    """A proposer that takes turns with others, under its own name."""

    proposer: Proposer
    typical: Spent
    """What a round of it takes, as far as is known without one."""
    predicted_us: Callable[[RoundContext], float | None] | None = None
    """What it expects to take off the round's parent; None, or a function that gives it: it cannot say."""


@dataclass(frozen=True)
class Turn:
    """Who was chosen for one plan, and what was thought of each."""

    round: int
    place: int
    """Which plan of the round, from 0."""
    proposer: str
    draws: tuple[Draw, ...]


class Turns(Protocol):
    """Where turns are kept. Durable when the call returns."""

    def turn_of(self, round: int, place: int) -> str | None:
        """Who was chosen last for this plan of this round; None: nobody yet."""
        ...

    def take(self, turn: Turn) -> None: ...


def pulls_of(attempts: Iterable[Attempt], baseline: Measured) -> list[Pull]:
    """Every try of a proposer that was decided, oldest first. A winner that failed its last check won nothing."""
    limited = {}
    pulls = []
    for attempt in attempts:
        if attempt.measured is not None:
            limited[attempt.id] = attempt.measured.bottleneck
        decision = attempt.decision
        if decision is None or not attempt.proposer:
            continue
        gained = 0.0
        if decision.improved and decision.candidate_us is not None and attempt.last_check is None:
            gained = max(0.0, math.log(decision.best_us / decision.candidate_us))
        bottleneck = limited.get(attempt.parent_id, baseline.bottleneck)
        pulls.append(Pull(attempt.proposer, attempt.round, bottleneck.value, gained, attempt.spent or Spent()))
    return pulls


class TakingTurns:
    """All four roles: what one plans it also writes, summarizes and reviews."""

    def __init__(
        self,
        contenders: Sequence[Contender],
        rule: CostAware,
        turns: Turns,
        seed: str,
        before: Callable[[str], Mapping[str, Track]],
        tried: Callable[[Sequence[Pull]], None] = lambda pulls: None,
        say: Callable[[str], None] = lambda line: None,
        patience: int = 5,
    ) -> None:
        """`seed`: the run's; the same one draws the same. `before`: what earlier runs know of each proposer, against a
        bottleneck. `tried` is told all tries so far whenever a round begins; `say`: who is out, and why. `patience`:
        rounds without improvement after which the run ends."""
        self._contenders = {each.proposer.name: each for each in contenders}
        if len(self._contenders) < len(contenders):
            raise ValueError(f"two proposers of one name: {[each.proposer.name for each in contenders]}")
        self._rule, self._turns, self._seed, self._before = rule, turns, seed, before
        self._tried, self._say, self._patience = tried, say, patience
        self._round = 0
        self._places = 0
        self._failures: Counter[str] = Counter()
        self._resting: dict[str, ModelError] = {}
        """Those that could not answer in this round."""
        self._out: dict[str, ModelError] = {}
        self._without_ideas: dict[str, tuple[str, int]] = {}
        """For which kernel, with how many measured, one had none; asked again when there is something new."""
        self._lock = threading.Lock()

    def together(self) -> Proposer:
        return Proposer(", ".join(self._contenders), self, self, self, self, self._spent_usd)

    # --- the four roles -------------------------------------------------------------------------------

    def plan(self, context: RoundContext) -> Plan:
        """Of the first that has one, in the order of the draws. Raises what the others said where none has."""
        if context.round != self._round:
            self._round, self._places, self._resting = context.round, 0, {}
            self._tried(self._pulls(context))
        place, self._places = self._places, self._places + 1
        said: dict[str, Exception] = {}
        name = self._turns.turn_of(context.round, place)
        while True:
            if name not in self._open(context, said):
                name = self._chosen(context, place, said)
            if name is None:
                raise self._in_vain(context, said)
            try:
                plan = self._contenders[name].proposer.planner.plan(context)
            except NothingToPlan as nothing:
                said[name] = nothing
                if not context.planned:
                    self._without_ideas[name] = _state_of(context)
            except UnusablePlan as error:
                error.proposer = name
                raise
            except ModelError as error:
                said[name] = error
                self._failed(name, error)
            else:
                self._failures[name] = 0
                return replace(plan, proposer=name)

    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        """Raises what the plan's own executor does; CannotRepair where its budget is used up and others go on."""
        try:
            return self._of(plan).executor.execute(context, plan, feedback)
        except BudgetExhausted as error:
            self._failed(plan.proposer, error)
            if len(self._out) == len(self._contenders):
                raise
            raise CannotRepair(str(error)) from error
        except ModelError as error:
            self._failed(plan.proposer, error)
            raise self._for_now(error) from error

    def summarize(
        self, context: RoundContext, plan: Plan, candidate: Candidate, result: Measured, decision: Decision
    ) -> Experience:
        try:
            return self._of(plan).summarizer.summarize(context, plan, candidate, result, decision)
        except ModelUnusable as error:
            self._failed(plan.proposer, error)
            raise self._for_now(error) from error

    def reflect(
        self,
        context: RoundContext,
        plan: Plan,
        candidate: Candidate | None,
        result: Evaluation | None,
        decision: Decision,
    ) -> Reflexion:
        try:
            return self._of(plan).reflector.reflect(context, plan, candidate, result, decision)
        except ModelUnusable as error:
            self._failed(plan.proposer, error)
            raise self._for_now(error) from error

    # --- who is asked ---------------------------------------------------------------------------------

    def _of(self, plan: Plan) -> Proposer:
        """The first for a plan of somebody who is no longer among them: a run may be resumed with others."""
        known = self._contenders.get(plan.proposer)
        return (known or next(iter(self._contenders.values()))).proposer

    def _open(self, context: RoundContext, said: Mapping[str, Exception]) -> list[str]:
        """Those that may be asked for this plan."""
        return [
            name
            for name in self._contenders
            if name not in said and name not in self._out and name not in self._resting
            and self._without_ideas.get(name) != _state_of(context)
        ]  # fmt: skip

    def _chosen(self, context: RoundContext, place: int, said: Mapping[str, Exception]) -> str | None:
        may = self._open(context, said)
        if not may:
            return None
        before = self._before(context.parent_result.bottleneck.value)
        seed = f"{self._seed}/{context.round}/{place}"
        arms = [self._arm(each, context) for each in self._contenders.values()]
        pulls = self._pulls(context)
        draws = self._rule.draws(arms, pulls, before, context.round, seed)
        may = self._last_chances(may, context.history, pulls)
        name = next(draw.proposer for draw in draws if draw.proposer in may)
        self._turns.take(Turn(context.round, place, name, draws))
        return name

    def _last_chances(self, may: list[str], history: Sequence[Attempt], pulls: Sequence[Pull]) -> list[str]:
        """No run gives up before each was asked: a dear one may find what the cheap ones, first in turn, did not."""
        idle = AttemptHistory(history).rounds_without_improvement()
        last = max((attempt.round for attempt in history), default=0)
        since = {pull.proposer for pull in pulls if pull.round > last - idle}
        waiting = [name for name in may if name not in since]
        return waiting if waiting and self._patience - idle <= len(waiting) else may

    def _arm(self, contender: Contender, context: RoundContext) -> Arm:
        gain_us = contender.predicted_us(context) if contender.predicted_us is not None else None
        predicted = None
        if gain_us is not None:
            now_us = context.parent_result.latency_us
            predicted = math.log(now_us / max(now_us - gain_us, 0.01 * now_us))
        return Arm(contender.proposer.name, contender.typical, predicted)

    def _pulls(self, context: RoundContext) -> list[Pull]:
        return pulls_of(context.history, context.measured[0][1])

    def _spent_usd(self, name: str) -> float:
        known = self._contenders.get(name)
        account = known.proposer.spent_usd if known is not None else None
        return account(name) if account is not None else 0.0

    # --- who cannot answer ----------------------------------------------------------------------------

    def _failed(self, name: str, error: ModelError) -> None:
        with self._lock:  # lanes write in threads of their own
            self._failures[name] += 1
            self._resting[name] = error
            never = isinstance(error, (BudgetExhausted, ModelUnusable))
            if name in self._out or not (never or self._failures[name] >= MOST_FAILURES):
                return
            self._out[name] = error
            left = [other for other in self._contenders if other not in self._out]
        if left:
            self._say(f"{name} is out for this run, {', '.join(left)} goes on: {error}")

    def _for_now(self, error: ModelError) -> ModelError:
        """What ends one proposer's part does not end a run in which others go on."""
        if len(self._out) == len(self._contenders) or not isinstance(error, ModelUnusable):
            return error
        passing = ModelError(str(error))
        passing.usage = error.usage
        return passing

    def _in_vain(self, context: RoundContext, said: Mapping[str, Exception]) -> Exception:
        """What to tell the loop. An idea may still come of those that could not answer now; a round that has plans is
        carried out in any case."""
        later = [error for name, error in self._resting.items() if name not in self._out]
        if later and not context.planned:
            return later[0]
        nothing = [f"{name}: {error}" for name, error in said.items() if isinstance(error, NothingToPlan)]
        idle = [name for name in self._without_ideas if name not in said and name not in self._out]
        if nothing or idle or context.planned:
            nothing += [f"{name}: no idea left for this kernel" for name in idle]
            return NothingToPlan("; ".join([*nothing, *(f"{name}: {error}" for name, error in self._out.items())]))
        return next(iter(self._out.values()))


def _state_of(context: RoundContext) -> tuple[str, int]:
    return context.parent.content_hash, len(context.measured)
