"""One candidate's way through a round: written, evaluated, repaired, until it is right or its tries are used up.

A round with several lanes runs each in a thread of its own. They share nothing that changes, and file nothing
themselves: what they tried is handed to the loop, which alone writes the journal.
"""

from __future__ import annotations

import ast
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from accelopt_core.candidate import Candidate, Plan, parsed, source_hash
from accelopt_core.evaluation import Evaluation, Implausible, Measured, explain
from accelopt_core.loop.steps import Place, Steps, Stop
from accelopt_core.ports import BudgetExhausted, ModelError, Step, Try
from accelopt_core.proposer import CannotRepair, Executor, Feedback, RoundContext, UnusableReply
from ka_extensions.attempt_history import MODEL_FAILED, Attempt

_LONGEST_STATEMENT = 200

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MOST_LANES = len(LETTERS)


@dataclass
class Lane:
    """`plan` is None where no usable one was made: such a lane ends before it begins."""

    place: Place
    context: RoundContext
    plan: Plan | None
    lanes: int = 1
    """How many the round has."""
    last: Try | None = None
    """The newest try, not filed yet: its decision is still to come."""
    candidate: Candidate | None = None
    result: Evaluation | None = None
    stopped_by: BaseException | None = field(default=None, repr=False)

    @property
    def measured(self) -> Measured | None:
        return self.result if isinstance(self.result, Measured) else None

    def run(
        self,
        executor: Executor,
        evaluate: Callable[[Place, Candidate], Evaluation],
        steps: Steps,
        file: Callable[[Try], None],
        max_repairs: int,
    ) -> None:
        """`file` is handed each try but the last. Raises Stop, BudgetExhausted and what `evaluate` raises."""
        plan = self.plan
        assert plan is not None
        feedback: tuple[Feedback, ...] = ()
        for tries in range(1, max_repairs + 2):
            repair = f"repair {tries - 1} of {max_repairs}" if tries > 1 else ""
            steps.begin(self.place, Step.EXECUTE, repair)
            try:
                source = executor.execute(self.context, plan, feedback)
            except UnusableReply as unusable:
                message = f"no kernel in the reply: {unusable}"
                steps.note(self.place, Step.EXECUTE, message)
                self._hold(self.tried(tries, "no_kernel", message), file)
                feedback += (Feedback(unusable.reply, str(unusable)),)
                continue
            except BudgetExhausted:
                raise
            except (CannotRepair, ModelError) as error:
                steps.note(self.place, Step.EXECUTE, str(error))
                if isinstance(error, ModelError):
                    self._hold(self.tried(tries, MODEL_FAILED, str(error)), file)
                elif self.last is None:
                    self._hold(self.tried(tries, "no_kernel", str(error)), file)
                return
            candidate = Candidate(self._id(tries), source, self.context.parent.id, plan.id)
            steps.check(self.place)
            result = evaluate(self.place, candidate)
            self.candidate, self.result = candidate, result
            message = explain(result)
            self._hold(self.tried(tries, result.kind, message, candidate, result), file)
            if isinstance(result, (Measured, Implausible)):
                return
            steps.note(self.place, Step.VERIFY, message)
            feedback += (Feedback(source, message),)

    def tried(
        self, tries: int, outcome: str, summary: str, candidate: Candidate | None = None,
        result: Evaluation | None = None,
    ) -> Try:  # fmt: skip
        plan = self.plan
        attempt = Attempt(
            round=self.place.round,
            candidate_id=candidate.id if candidate else self._id(tries),
            content_hash=candidate.content_hash if candidate else source_hash(summary),
            parent_id=self.context.parent.id,
            technique=plan.technique if plan else "",
            title=plan.title if plan else "",
            outcome=outcome,
            latency_us=result.latency_us if isinstance(result, Measured) else None,
            summary=summary,
            lane=self.place.lane,
        )
        return Try(
            self.place.round, tries, plan, candidate, result, attempt, lane=self.place.lane, lanes=self.lanes
        )  # fmt: skip

    def _id(self, tries: int) -> str:
        return f"r{self.place.round:03d}{self.place.lane}t{tries}"

    def _hold(self, entry: Try, file: Callable[[Try], None]) -> None:
        if self.last is not None:
            file(self.last)
        self.last = entry


def quoting(result: Evaluation, source: str) -> Evaluation:
    """The same result, its hot lines with their text: whoever reads of line 16 need not have the kernel at hand."""
    if not isinstance(result, Measured):
        return result
    text = _statements(source)
    hot = tuple(line if line.text else replace(line, text=text.get(line.line, "")) for line in result.profile.hot_lines)
    return replace(result, profile=replace(result.profile, hot_lines=hot))


def _statements(source: str) -> dict[int, str]:
    """By line: the simple statement it belongs to, in one line; where there is none, the line itself."""
    lines = source.splitlines()
    found = {number: line.strip() for number, line in enumerate(lines, 1)}
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # of another era's language, perhaps
        return found
    for node in ast.walk(tree):
        if isinstance(node, (ast.Expr, ast.Assign)) and node.end_lineno is not None and node.end_lineno > node.lineno:
            whole = " ".join(line.strip() for line in lines[node.lineno - 1 : node.end_lineno])
            shown = whole if len(whole) <= _LONGEST_STATEMENT else f"{whole[: _LONGEST_STATEMENT - 2]} …"
            found.update(dict.fromkeys(range(node.lineno, node.end_lineno + 1), shown))
    return found


def run_side_by_side(lanes: Sequence[Lane], run: Callable[[Lane, Callable[[Try], None]], None], steps: Steps,
                     file: Callable[[Try], None]) -> None:  # fmt: skip
    """Runs each lane in a thread, and files in this one what they try, as it comes.

    When all are through, what stopped a lane is in its `stopped_by`. An interrupt of this thread leaves them behind:
    they are daemons, and end with the target they wait for.
    """
    said: queue.SimpleQueue[Try | Lane] = queue.SimpleQueue()

    def go(lane: Lane) -> None:
        try:
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
        if isinstance(item, Try):
            file(item)
        else:
            under_way -= 1
