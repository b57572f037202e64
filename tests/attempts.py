"""An attempt in one line, for tests of what looks at attempts."""

from __future__ import annotations

from accelopt_core.candidate import Attempt, Candidate, Plan
from accelopt_core.evaluation import Bottleneck, Bounds, Measured, Profile
from ka_extensions.outcome import Outcome


def attempted(
    round: int, outcome: Outcome | str, *, name: str = "", parent: str = "input", technique: str = "", title: str = "",
    source: str | None = None, latency_us: float | None = None, summary: str = "", number: int = 1, lane: str = "",
) -> Attempt:  # fmt: skip
    """`technique` empty: there was no plan. A name, a source or a latency: there was a candidate."""
    plan = (
        Plan(f"plan-{round:03d}", title or technique, technique, Bottleneck.MEMORY_BOUND, 1.0, "r")
        if technique
        else None
    )
    candidate = None
    if name or source is not None or latency_us is not None:
        candidate = Candidate(name or f"r{round:03d}{lane}t{number}", source or f"x = {round}\n", parent, None)
    measured = None
    if latency_us is not None:
        profile = Profile({}, Bounds(1.0, 1.0, 1.0, "declared"))
        measured = Measured(latency_us, latency_us, latency_us, 1, True, "simulated trn2", profile)
    return Attempt(round, number, parent, plan, candidate, measured, Outcome(outcome), summary, lane)
