"""Why the gaps of a kernel are still there, with the simulated machine's word on what each change would gain."""

from __future__ import annotations

from collections.abc import Callable

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.catalogue.explaining import LIMIT_S, explained
from accelopt_core.evaluation import Measured
from accelopt_core.explanation import Explanation
from accelopt_core.loop.events import Ending, Event, Notice
from accelopt_core.loop.rounds import RunResult
from accelopt_core.ports import TargetError, TaskFault
from infra.prediction.predictor import Predictor
from infra.runs.run_folder import RunFolder
from nki_sim.timing import ties


def explanation_of(
    candidate: Candidate,
    result: Measured,
    predictor: Predictor,
    history: tuple[Attempt, ...] = (),
    limit_s: float = LIMIT_S,
) -> Explanation:
    within = ties.shipped().within
    return explained(candidate, result, predictor, history, limit_s, within)


def explain_end(
    result: RunResult, predictor: Predictor, folder: RunFolder, tell: Callable[[Event], None], limit_s: float = LIMIT_S
) -> None:
    """What is left to gain in a run's best kernel, and what stands in the way: "no idea left" alone helps nobody."""
    if result.ending in (Ending.INTERRUPTED, Ending.FAILED):
        return
    try:
        explanation = explanation_of(result.best, result.best_result, predictor, result.attempts, limit_s)
    except (TargetError, TaskFault) as error:  # the run itself is done, and its result stands
        tell(Notice(f"what is left to gain cannot be priced: {error}", "warning"))
        return
    folder.explain(explanation)
