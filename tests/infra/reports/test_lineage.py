"""Which kernel came from which, as data and as drawn."""

from __future__ import annotations

import pytest

from accelopt_core.candidate import Attempt
from infra.runs.lineage import Lineage
from infra.terminal.family_tree import path_line, tree_lines
from tests.attempts import attempted


def attempt(name: str, parent: str, us: float | None, outcome: str) -> Attempt:
    return attempted(int(name[1:4]), outcome, name=name, parent=parent, technique="t", latency_us=us)


ATTEMPTS = (
    attempt("r001t1", "input", 250.0, "improved"), attempt("r002t1", "r001t1", None, "incorrect"),
    attempt("r002t2", "r001t1", 300.0, "kept"), attempt("r003t1", "r002t2", 200.0, "improved"),
    attempt("r004t1", "r003t1", 900.0, "reverted"), attempt("r005t1", "r003t1", 100.0, "incorrect"),
    attempt("r006t1", "input", None, "compile_failed"),
)  # fmt: skip
RUN = Lineage(500.0, ATTEMPTS, "r003t1", dropped=["r005t1"])


def test_the_path_leads_from_the_input_to_the_best() -> None:
    assert RUN.path() == ("input", "r001t1", "r002t2", "r003t1")
    assert Lineage(500.0, (), "input").path() == ("input",)
    loop = (attempt("r001t1", "r002t1", 1.0, "kept"), attempt("r002t1", "r001t1", 1.0, "kept"))
    assert len(Lineage(1.0, loop, "r001t1").path()) == 2, "a damaged journal does not hang the view"


def test_the_tree_shows_what_mattered_and_counts_the_rest() -> None:
    assert [line.plain for line in tree_lines(RUN)] == [
        "input  500.0 µs   (1 more try from here led nowhere)",
        "└─ r001t1  250.0 µs  improved   (1 more try from here led nowhere)",
        "   └─ r002t2  300.0 µs  kept, no best",
        "      └─ r003t1  200.0 µs  * best   (1 more try from here led nowhere)",
        "         └─ r005t1  100.0 µs  dropped: failed its last check",
    ]
    assert all(line.plain.replace("µ", "u").isascii() for line in tree_lines(RUN, ascii_only=True))


@pytest.mark.parametrize("width", [20, 40, 60, 100])
def test_the_path_fits_its_line(width: int) -> None:
    long = [attempt(f"r{n:03d}t1", f"r{n - 1:03d}t1" if n > 1 else "input", 1.0, "improved") for n in range(1, 30)]
    line = path_line(Lineage(9.0, long, "r029t1"), "r029t1", width).plain
    assert len(line) <= width and line.startswith("input")
    if width >= 40:
        assert line.endswith("r029t1*")
