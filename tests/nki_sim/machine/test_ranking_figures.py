"""The figures of the timing report, by hand."""

from __future__ import annotations

import pytest

from benchmarks import ranking
from benchmarks.timing_figures import by_family, figures
from benchmarks.timing_rows import Outcome

REVERSED = [(3.0, 10.0), (2.0, 20.0), (1.0, 30.0)]


def test_only_pairs_that_differ_clearly_are_counted() -> None:
    rows = [(1.0, 100.0), (2.0, 101.0), (3.0, 110.0)]
    assert ranking.pairs_in_order(rows, 0.02) == (2, 2)
    assert ranking.pairs_in_order(rows, 0.0) == (3, 3)
    assert ranking.pairs_in_order(REVERSED, 0.02) == (0, 3)


def outcome(number: int, predicted: float | None, measured: float | None, **more: object) -> Outcome:
    given: dict[str, object] = {"family": "f", "grid": "g", **more}
    return Outcome(f"X{number}", what="", measured=measured, predicted=predicted, **given)  # type: ignore[arg-type]


def test_a_refusal_is_counted_against_the_model_and_its_time_against_the_choice() -> None:
    line = figures(
        "f", [outcome(1, 100, 110), outcome(2, None, 100), outcome(3, 90, None), outcome(4, None, None),
              outcome(5, 150, 150)],
    )  # fmt: skip
    assert (line.rows, line.refused, line.accepted) == (2, ("X2",), ("X3",))
    assert line.median == pytest.approx(100 * 10 / 110 / 2)
    assert line.rank is not None
    assert (line.rank.right, line.rank.pairs) == (1, 1)
    assert line.rank.top_1_percent == pytest.approx(10)


def test_grids_are_ranked_apart_and_reported_under_their_family() -> None:
    rows = [outcome(1, 1, 10), outcome(2, 2, 20), outcome(3, 9, 1, grid="h"), outcome(4, 8, 2, grid="h")]
    [(family, parts)] = by_family(rows)
    assert [part.name for part in parts] == ["g", "h"]
    assert family.rank is not None
    assert (family.rank.right, family.rank.pairs, family.rank.tau) == (1, 2, 0)
    assert family.rank.top_1_percent == pytest.approx(50)
