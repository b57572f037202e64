"""The replay of what a device is sent: by hand on a made grid, and on the recorded ones as docs/search.md has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelopt_core.evaluation import Bottleneck
from benchmarks import screening
from benchmarks.search_grids import Grid, Setting

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
