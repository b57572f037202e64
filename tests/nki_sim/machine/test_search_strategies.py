"""The replay of search strategies is honest: what is measured is paid for, and known to nobody before."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelopt_core.evaluation import Bottleneck
from benchmarks import search
from benchmarks.search_grids import Device, Grid, Setting, Spent
from benchmarks.search_strategies import STRATEGIES


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
    with pytest.raises(Spent):
        device.time(grid.settings[4])


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_ends_pays_and_depends_on_its_seed_alone(name: str) -> None:
    runs = search.replayed(made(), STRATEGIES[name], range(3), most=7)
    assert runs == search.replayed(made(), STRATEGIES[name], range(3), most=7)
    assert all(2 <= len(curve) <= 8 and list(curve) == sorted(curve, reverse=True) for curve in runs.regrets)


def test_those_that_look_at_prices_are_misled_by_wrong_ones_and_the_others_are_not() -> None:
    def first(name: str, guide: float) -> tuple[float, ...]:
        return tuple(search.replayed(made(guide), STRATEGIES[name], range(3), most=7).at(1))

    changed = {name for name in STRATEGIES if first(name, 1.0) != first(name, -1.0)}
    assert changed == {"greedy by price", "single lineage", "archive + sweep"}


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
