"""The benchmarks of searching: each replay is honest, each figure is the one by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accelopt_core.evaluation import Bottleneck
from benchmarks import screening, search, search_grids
from benchmarks.search_grids import Device, Grid, Setting
from benchmarks.search_strategies import STRATEGIES
from benchmarks.timing_figures import by_family, figures
from benchmarks.timing_rows import Outcome


def made(guide: float = 1.0) -> Grid:
    """Two by two by two settings, of which the least blocked is slowest; the guide errs by a factor to a power."""
    settings, measured = [], {}
    for number, values in enumerate((a, b, c) for a in (1, 4) for b in (1, 2) for c in (1, 8)):
        us = 100.0 - 10 * sum(value > 1 for value in values) - values[2]
        measured[str(number)] = us
        settings.append(Setting(str(number), values, us**guide, Bottleneck.MEMORY_BOUND))
    return Grid("made", tuple(settings), {**measured, "3": None})


def test_a_setting_is_paid_for_once_and_a_refused_one_too() -> None:
    grid = made()
    device = Device(grid, grid.settings[0], most=3)
    assert device.time(grid.settings[0]) == 99.0 and device.time(grid.settings[1]) == 82.0
    assert device.time(grid.settings[1]) == 82.0 and device.time(grid.settings[3]) is None
    assert device.time(grid.settings[2]) == 89.0 and device.curve_us == [99.0, 82.0, 82.0, 82.0]
    with pytest.raises(search_grids.Spent):
        device.time(grid.settings[4])


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_ends_pays_and_depends_on_its_seed_alone(name: str) -> None:
    runs = search.replayed(made(), STRATEGIES[name], range(3), most=7)
    assert runs == search.replayed(made(), STRATEGIES[name], range(3), most=7)
    assert all(2 <= len(curve) <= 8 and list(curve) == sorted(curve, reverse=True) for curve in runs.regrets)


@pytest.mark.slow
def test_the_archive_and_its_sweep_meet_the_target_on_every_recorded_grid(tmp_path: Path) -> None:
    page = tmp_path / "search.md"
    page.write_text(f"before\n{search.BEGIN}\nold\n{search.END}\nafter\n", encoding="utf-8")
    assert search.main(["--write", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "old" not in text and text.startswith("before") and text.endswith("after\n")
    shipped = (Path(__file__).resolve().parents[3] / "docs/search.md").read_text(encoding="utf-8")
    assert text.partition(search.BEGIN)[2].partition(search.END)[0] in shipped
    assert text.count(f"| {search.HELD} |") == 4


TWELVE = tuple(Setting(str(n), (n, 1, 1), 100.0 + 10 * n, Bottleneck.MEMORY_BOUND) for n in range(12))


def test_three_of_a_round_go_and_what_is_not_sent_is_what_it_costs() -> None:
    right = Grid("right", TWELVE, {str(n): 50.0 + n for n in range(12)})
    assert screening.replayed(right, 12, 2) == [screening.Sent(0.25, 0.0)] * 2
    wrong = Grid("wrong", TWELVE, {str(n): 62.0 - n for n in range(12)})
    (sent,) = screening.replayed(wrong, 12, 1)
    assert sent.share == 0.25 and sent.regret_percent == pytest.approx(100 * (60 / 51 - 1))


def test_what_has_no_price_or_no_time_is_left_out_and_small_rounds_are_not_replayed() -> None:
    grid = Grid("few", TWELVE, {str(n): 50.0 if n < 7 else None for n in range(12)})
    assert len(screening.replayed(grid, 6, 1)) == 1 and screening.replayed(grid, 12, 9) == []


@pytest.mark.slow
def test_on_the_recorded_grids_it_costs_little_and_the_page_says_so(tmp_path: Path) -> None:
    page = tmp_path / "search.md"
    page.write_text(f"before\n{screening.BEGIN}\nold\n{screening.END}\nafter\n", encoding="utf-8")
    assert screening.main(["--write", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    shipped = (Path(__file__).resolve().parents[3] / "docs/search.md").read_text(encoding="utf-8")
    assert "old" not in text and text.partition(screening.BEGIN)[2].partition(screening.END)[0] in shipped


def outcome(number: int, predicted: float | None, measured: float | None, **more: Any) -> Outcome:
    given = {"family": "f", "grid": "g", **more}
    return Outcome(f"X{number}", what="", measured=measured, predicted=predicted, **given)


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
