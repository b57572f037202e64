"""Latency over rounds as text: where each mark stands, what is left out, and when there is nothing to draw."""

from __future__ import annotations

from accelopt_core.candidate import Attempt
from infra.terminal.report import HEIGHT, chart_lines
from tests.attempts import attempted


def drawn(*attempts: Attempt, width: int = 80, ascii_only: bool = False) -> list[str]:
    return [line.plain.rstrip() for line in chart_lines(100.0, attempts, width, ascii_only=ascii_only)]


WON = attempted(1, "improved", latency_us=40.0)
BROKEN = attempted(2, "timed_out", source="x = 2")
SLOW = attempted(3, "reverted", latency_us=70.0)


def test_each_round_has_its_mark_where_its_latency_is_and_the_best_goes_on() -> None:
    assert drawn(WON, BROKEN, SLOW) == [
        "    100.0 µs │o──", "             │", "             │", "             │         ↩", "             │",
        "             │", "     40.0 µs │   ✓────────", "             └──────✗─────",
        "              0        3  round",
    ]  # fmt: skip


def test_the_fastest_lane_and_the_newest_rounds_are_drawn_where_there_is_a_difference() -> None:
    lanes = (attempted(2, "improved", latency_us=20.0, lane="a"), attempted(2, "reverted", latency_us=90.0, lane="b"))
    lines = drawn(WON, *lanes)
    assert lines[HEIGHT - 1] == "     20.0 µs │      ✓──" and "↩" not in "".join(lines)
    attempts = [attempted(number, "improved", latency_us=100.0 - number) for number in range(1, 60)]
    lines = drawn(*attempts, width=44)
    assert max(map(len, lines)) <= 44 + len("  round") and lines[-1].split() == ["30", "59", "round"]
    assert "o" not in lines[0], "the input is left out"
    assert drawn() == [] and drawn(WON) == [] and drawn(BROKEN) == []
    assert drawn(*(attempted(number, "no_improvement", latency_us=100.0) for number in (1, 2))) == []
