"""The figures of the timing report, by hand."""

from __future__ import annotations

import pytest

from benchmarks import ranking
from benchmarks.timing_figures import by_family, clear_difference, figures
from benchmarks.timing_rows import Outcome

REVERSED = [(3.0, 10.0), (2.0, 20.0), (1.0, 30.0)]


def test_percentiles_lie_between_their_neighbours() -> None:
    assert ranking.percentile([4, 0, 2], 0.5) == 2
    assert ranking.percentile([0, 10], 0.9) == pytest.approx(9)
    with pytest.raises(ValueError, match="no values"):
        ranking.percentile([], 0.5)


def test_only_pairs_that_differ_clearly_are_counted() -> None:
    rows = [(1.0, 100.0), (2.0, 101.0), (3.0, 110.0)]
    assert ranking.pairs_in_order(rows, 0.02) == (2, 2)
    assert ranking.pairs_in_order(rows, 0.0) == (3, 3)
    assert ranking.pairs_in_order(REVERSED, 0.02) == (0, 3)


def test_equal_predictions_put_nothing_in_order() -> None:
    assert ranking.pairs_in_order([(5.0, 10.0), (5.0, 20.0)], 0.02) == (0, 1)


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


def test_a_bound_above_the_device_is_named() -> None:
    line = figures("f", [outcome(1, 100, 100, bound_us=101.0), outcome(2, 100, 100, bound_us=103.0)])
    assert line.too_high_bounds == ("X2: 103.0 > 100.0",)


def test_spilled_bytes_are_compared_where_the_device_spilled() -> None:
    rows = [outcome(1, 9, 9, spilled_bytes=100, predicted_spill_bytes=75.0), outcome(2, 9, 9, spilled_bytes=-5)]
    line = figures("f", rows)
    assert line.spilled == 1
    assert line.spill_median == pytest.approx(25)


def test_grids_are_ranked_apart_and_reported_under_their_family() -> None:
    rows = [outcome(1, 1, 10), outcome(2, 2, 20), outcome(3, 9, 1, grid="h"), outcome(4, 8, 2, grid="h")]
    [(family, parts)] = by_family(rows)
    assert [part.name for part in parts] == ["g", "h"]
    assert family.rank is not None
    assert (family.rank.right, family.rank.pairs, family.rank.tau) == (1, 2, 0)
    assert family.rank.top_1_percent == pytest.approx(50)


def test_rows_of_kda_must_differ_more() -> None:
    assert clear_difference("kda_matmul") == 0.05 and clear_difference("blocked_fp32") == 0.02
