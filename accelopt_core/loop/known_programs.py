"""Which programs a run has judged, and what they came to: whoever writes one again is told, and it is not paid for."""

from __future__ import annotations

from collections.abc import Iterable

from accelopt_core.candidate import Attempt
from accelopt_core.evaluation import Implausible, Incorrect, Measured, explain
from accelopt_core.ports import KnownProgram

INPUT = "input"
"""Id of the task's own kernel."""


def known_programs(baseline: Measured, attempts: Iterable[Attempt], below_us: float) -> tuple[KnownProgram, ...]:
    """Those whose verdict still stands, the input kernel's first.

    `below_us`: what is faster than this is verified at the full shape, so that an earlier kernel which was not, having
    been too slow for the best of then, says nothing of it.
    """
    known = []
    if baseline.programs:
        known.append(KnownProgram(INPUT, baseline.programs, f"{explain(baseline)}, the kernel that the run began with"))
    for attempt in attempts:
        result = attempt.evaluation
        if attempt.candidate is None or not isinstance(result, (Measured, Incorrect, Implausible)):
            continue
        # What a last check found wrong stays so: nobody has it checked with other seeds by writing it once more.
        stands = attempt.last_check is not None or (
            isinstance(result, Measured) and (result.verified_full or result.is_proved_equal)
        )
        if isinstance(result, Measured) and not stands and result.latency_us < below_us:
            continue
        if result.programs:
            came_to = f"{attempt.summary} (round {attempt.round}, {attempt.outcome})"
            known.append(KnownProgram(attempt.candidate.id, result.programs, came_to))
    return tuple(known)
