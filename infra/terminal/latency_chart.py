"""Latency over rounds as text: a column for each round, its marks those of the table, a line for the fastest so far."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from accelopt_core.candidate import Attempt
from infra.terminal import wording
from ka_extensions.attempt_history import last_of_rounds
from ka_extensions.outcome import Outcome

HEIGHT = 7
"""Lines between the fastest and the slowest."""
LEAST_MEASURED = 2
"""Tries with a latency, to be worth a picture."""
COLUMN = 3
"""Characters for each round, where there is room."""
_EDGE = 14
"""Characters before the first column."""


def chart_lines(
    baseline_us: float, attempts: Sequence[Attempt], width: int, *, ascii_only: bool = False
) -> tuple[Text, ...]:
    """At most `width` characters wide: of more rounds the newest. None where too little was measured.

    Round 0 is the input kernel. Of several lanes the fastest is drawn; what has no latency stands on the axis.
    """
    rounds = [(0, baseline_us, None), *(_fastest(lanes) for lanes in last_of_rounds(attempts))]
    if sum(us is not None for _, us, _ in rounds) <= LEAST_MEASURED:
        return ()
    best = _best_so_far([us for _, us, _ in rounds], [outcome for _, _, outcome in rounds])
    columns = max(1, width - _EDGE)
    column = next((each for each in (COLUMN, 2) if len(rounds) * each <= columns), 1)
    shown = slice(max(0, len(rounds) - columns // column), None)
    rounds, best = rounds[shown], best[shown]
    known = [us for _, us, _ in rounds if us is not None] + best
    low, high = min(known), max(known)
    if high <= low:
        return ()

    def row(us: float) -> int:
        return round((high - us) / (high - low) * (HEIGHT - 1))

    flat, upright, corner = ("-", "|", "+") if ascii_only else ("─", "│", "└")
    cells = [[(" ", "")] * (column * len(rounds)) for _ in range(HEIGHT)]
    axis = [(flat, "dim")] * (column * len(rounds))
    for number, ((_, us, outcome), best_us) in enumerate(zip(rounds, best)):
        at = number * column
        for place in range(at, at + column):
            cells[row(best_us)][place] = (flat, "green dim")
        words = wording.outcome_words(outcome) if outcome is not None else None
        mark = (words.plain_mark if ascii_only else words.mark) if words is not None else "o"
        spot = (mark, words.style if words is not None else "bold")
        if us is None:
            axis[at] = spot
        else:
            cells[row(us)][at] = spot
    lines = []
    for number, line in enumerate(cells):
        label = {0: wording.latency(high), HEIGHT - 1: wording.latency(low)}.get(number, "")
        lines.append(Text.assemble((f"{label:>{_EDGE - 2}} {upright}", "dim"), *line))
    lines.append(Text.assemble((f"{'':{_EDGE - 2}} {corner}", "dim"), *axis))
    first, last = str(rounds[0][0]), str(rounds[-1][0])
    under = f"{first}{last:>{max(0, column * (len(rounds) - 1) + 1 - len(first))}}  round"
    lines.append(Text(f"{'':{_EDGE}}{under}", style="dim"))
    return tuple(lines)


def _fastest(lanes: Sequence[Attempt]) -> tuple[int, float | None, Outcome | None]:
    """Of a round: its number, and latency and outcome of its fastest lane, or of its first where none has one."""
    timed = [attempt for attempt in lanes if attempt.latency_us is not None]
    chosen = min(timed, key=lambda attempt: attempt.latency_us or 0.0) if timed else lanes[0]
    return chosen.round, chosen.latency_us, chosen.outcome


def _best_so_far(latencies: Sequence[float | None], outcomes: Sequence[Outcome | None]) -> list[float]:
    best: list[float] = []
    for us, outcome in zip(latencies, outcomes):
        better = us is not None and (outcome is None or outcome is Outcome.IMPROVED)
        best.append(min([us, *best[-1:]]) if better and us is not None else best[-1])
    return best
