"""From which predicted difference on two kernels are in the right order: found from pairs of rows of one grid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import timing_ties
from benchmarks.timing_rows import Outcome
from nki_sim.machine import TRN2
from nki_sim.timing import ties

TIE = ties.Tie(0.02, 0.8, 10, 2, TRN2.name, "a test")


def row(name: str, predicted: float | None, measured: float | None, family: str = "f", grid: str = "g") -> Outcome:
    return Outcome(name, family, grid, "", measured, predicted)


def pairs_of(family: str, apart: float, right: int, wrong: int) -> list[Outcome]:
    """So many pairs, each a grid of its own, that the device tells apart by 10 % and the model by `apart`."""
    rows = []
    for number in range(right + wrong):
        grid = f"{family}{apart}-{number}"
        fast, slow = (100.0, 110.0) if number < right else (110.0, 100.0)
        rows += [row("a", 100.0 * (1 - apart), fast, family, grid), row("b", 100.0, slow, family, grid)]
    return rows


def test_a_pair_is_two_rows_of_one_grid_that_the_device_tells_apart() -> None:
    rows = [
        row("a", 90.0, 100.0), row("b", 100.0, 101.0), row("c", 120.0, 90.0), row("d", None, 85.0),
        row("e", 90.0, None), row("f", 100.0, 500.0, grid="another"),
    ]  # fmt: skip
    found = sorted((round(pair.apart, 4), pair.right) for pair in timing_ties.pairs(rows))
    assert found == [(round(1 - 100 / 120, 4), False), (0.25, False)]
    assert timing_ties.pairs([replace(each, family="kda") for each in rows[:2]]) == []


def test_rows_far_from_their_grids_fastest_are_in_no_pair() -> None:
    """Fast and slow are in order nearly always: they would make the tie look smaller than it is."""
    near = [row("a", 100.0, 100.0), row("b", 100.0, 124.0), row("c", 100.0, 126.0), row("d", 400.0, 400.0)]
    assert [(pair.apart, pair.right) for pair in timing_ties.pairs(near)] == [(0.0, True)]
    refused = [*near, row("e", None, 90.0)]
    assert timing_ties.pairs(refused) == [], "the grid's fastest counts, predicted or not"


def test_a_tie_ends_where_four_of_five_pairs_are_in_order() -> None:
    rows = [*pairs_of("a", 0.01, 6, 4), *pairs_of("a", 0.03, 8, 2), *pairs_of("a", 0.1, 10, 0)]
    found = timing_ties.tie(rows, TRN2)
    assert (found.within, found.level, found.pairs, found.families, found.machine) == (0.03, 0.8, 30, 1, "trn2")


def test_the_share_in_order_never_falls_with_the_difference() -> None:
    points = [(1.0, 0.0, 1.0), (2.0, 1.0, 1.0), (3.0, 0.0, 3.0), (4.0, 0.0, 1.0), (4.0, 1.0, 3.0)]
    assert timing_ties.never_falling(points) == [(1.0, 0.0), (2.0, 0.25), (4.0, 0.75)]


def test_the_shipped_one_is_of_trn2_and_smaller_than_any_interval_of_a_latency() -> None:
    found = ties.shipped()
    assert found.machine == TRN2.name and found.families >= 5 and found.pairs > 500
    assert 0.01 < found.within < 0.1 and "25 %" in found.source


def test_it_is_read_as_it_was_written_and_refused_with_what_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "ties.json"
    ties.dump(TIE, path)
    assert ties.load(path) == TIE
    ties.dump(replace(TIE, within=1.5), path)
    for text in (None, "{", "[]", "{}", path.read_text()):
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        with pytest.raises(ValueError, match=r"ties.json: .*--quick --write-ties makes it"):
            ties.load(path)
