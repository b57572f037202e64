"""What is said of a family of rows, or of one grid of it: one line of the report.

Figures of several grids: pairs are counted together; tau and regrets are the mean of the grids.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.ranking import Ranking, error_percent, percentile, ranking
from benchmarks.timing_rows import MICRO, Outcome

BOUND_ALLOWANCE = 1.02
"""A resource bound may exceed the device's time by this: times of one kernel vary by about a percent."""


@dataclass(frozen=True)
class Figures:
    """Errors in % of the measured time, without sign. None: no row says anything of it."""

    name: str
    rows: int
    """That ran on the device and that the simulator accepts; what errors and ranks are about."""
    median: float | None
    p90: float | None
    rank: Ranking | None
    refused: tuple[str, ...]
    """Rows that ran although the simulator refuses them."""
    accepted: tuple[str, ...]
    """Rows that the device's compiler refused although the simulator accepts them."""
    spilled: int
    """Rows to which the compiler added transfers."""
    spill_median: float | None
    """Error of the bytes added."""
    coverage: float | None
    """Share of rows inside their 80 % interval."""
    faster: float | None
    slower: float | None
    """Shares of rows beyond its low and its high end."""
    too_high_bounds: tuple[str, ...]
    """Rows faster than the model says anything can be: `row: bound > measured`."""


def clear_difference(family: str) -> float:
    """What makes a pair of rows worth ordering, as a fraction: rows of kda are read off rounder numbers."""
    return 0.05 if family.startswith("kda") else 0.02


def figures(name: str, outcomes: Sequence[Outcome]) -> Figures:
    """Of rows of one family."""
    known = [row for row in outcomes if row.ran_and_predicted]
    errors = _errors(known)
    sides = [row.side for row in known if row.side is not None]
    spilled = [row for row in known if row.spilled_bytes is not None and row.spilled_bytes > 0]
    return Figures(
        name,
        len({row.id for row in known}),
        statistics.median(errors) if errors else None,
        percentile(errors, 0.9) if errors else None,
        _rank(outcomes),
        tuple(row.id for row in outcomes if row.measured is not None and row.predicted is None),
        tuple(row.id for row in outcomes if row.measured is None and row.predicted is not None),
        len(spilled),
        statistics.median(_spill_error(row) for row in spilled) if spilled else None,
        sides.count("inside") / len(sides) if sides else None,
        sides.count("faster") / len(sides) if sides else None,
        sides.count("slower") / len(sides) if sides else None,
        tuple(
            f"{row.id}: {row.bound_us:,.1f} > {row.measured:,.1f}"
            for row in known
            if row.measured is not None and row.bound_us > row.measured * BOUND_ALLOWANCE
        ),
    )


def _errors(known: Sequence[Outcome]) -> list[float]:
    """One per row: a row of several numbers counts with their mean."""
    by_row: dict[str, list[float]] = {}
    for row in known:
        by_row.setdefault(row.id, []).append(error_percent(row.pair))
    return [statistics.mean(values) for values in by_row.values()]


def _spill_error(row: Outcome) -> float:
    assert row.spilled_bytes
    return error_percent((row.predicted_spill_bytes, row.spilled_bytes))


def grids(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for row in outcomes:
        found.setdefault(row.grid, []).append(row)
    return found


def _rank(outcomes: Sequence[Outcome]) -> Ranking | None:
    """Single instructions are not ranked: their numbers are of different kinds."""
    found = []
    for rows in grids(outcomes).values():
        ran = [row.measured for row in rows if row.measured is not None]
        if ran and rows[0].family != MICRO:
            pairs = [row.pair for row in rows if row.ran_and_predicted]
            found.append(ranking(pairs, clear_difference(rows[0].family), min(ran)))
    ranks = [each for each in found if each is not None]
    if not ranks:
        return None
    taus = [each.tau for each in ranks if each.tau is not None]
    return Ranking(
        sum(each.right for each in ranks),
        sum(each.pairs for each in ranks),
        statistics.mean(taus) if taus else None,
        statistics.mean(each.top_1_percent for each in ranks),
        statistics.mean(each.top_3_percent for each in ranks),
    )


def by_family(outcomes: Sequence[Outcome]) -> list[tuple[Figures, list[Figures]]]:
    """Each family, and its grids where it has several, in the order of the rows."""
    found = []
    for family in dict.fromkeys(row.family for row in outcomes):
        rows = [row for row in outcomes if row.family == family]
        parts = grids(rows)
        found.append((figures(family, rows), [figures(*part) for part in parts.items()] if len(parts) > 1 else []))
    return found
