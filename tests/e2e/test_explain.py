"""`explain` as a user types it: a kernel of theirs, then the best of a run; and what a run says at its end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.kernels import REFERENCE, SLOW
from tests.e2e.run import Ran, orchestrate, orchestrate_here

MADE = "            a = nl.ndarray((128, STEP), dtype=x.dtype, buffer=nl.sbuf)\n"
BEFORE_THE_LOOPS = SLOW.replace(MADE, "").replace("    for t in", MADE[8:] + "    for t in")
"""As people write it: one buffer, declared where all others are."""


@pytest.fixture(scope="module")
def after_a_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    folder = tmp_path_factory.mktemp("explain")
    (folder / "mine.py").write_text(BEFORE_THE_LOOPS, encoding="utf-8")
    (folder / "ref.py").write_text(REFERENCE.replace("2048", "512"), encoding="utf-8")
    ran = orchestrate(
        "--kernel", "mine.py", "--problem", "ref.py", "--provider", "catalogue", "--rounds", "4", folder=folder
    )
    assert ran.status == 0, ran.errors
    return folder, ran


def flat(text: str) -> str:
    """However wide the terminal was."""
    return " ".join(text.split())


def test_a_kernel_with_the_lines_and_the_rules_that_stand_in_the_way(after_a_run: tuple[Path, Ran]) -> None:
    folder, _ = after_a_run
    words = ("explain", "mine.py", "--problem", "ref.py", "--view", "quiet")
    short, said = orchestrate_here(*words, folder=folder), orchestrate_here(*words, "--all", folder=folder)
    assert said.status == short.status == 0, said.errors
    first, *_ = (line for line in short.output.splitlines() if line.startswith("1. "))
    assert re.search(r"line \d+.* gains [\d.]+ µs \(\S+\)$", first) and "4. " not in short.output
    assert "DMA below its bandwidth" in said.output
    assert re.search(r"offered \S+, line \d+: .* predicted to gain [\d.]+ µs", flat(said.output))
    assert re.search(r"refused \S+, line \d+: ", flat(said.output))
    assert said.errors == ""


def test_the_best_of_the_latest_run_or_of_one_by_its_id(after_a_run: tuple[Path, Ran]) -> None:
    folder, ran = after_a_run
    best = ran.document("best.json")["candidate"]["id"]
    latest, by_id = (
        orchestrate_here(*words, folder=folder)
        for words in (["explain", "--all"], ["explain", ran.folder.name, "--all"])
    )
    assert latest.status == by_id.status == 0, latest.errors
    assert latest.output == by_id.output
    assert f"{best} of run {ran.folder.name}" in flat(latest.output)
    assert re.search(r"applied already [a-z-]+ in round \d", flat(latest.output))


def test_a_wrong_kernel_and_a_run_that_is_none_are_refused_in_one_line(after_a_run: tuple[Path, Ran]) -> None:
    folder, _ = after_a_run
    (folder / "wrong.py").write_text(SLOW.replace("op=nl.add", "op=nl.subtract"), encoding="utf-8")
    wrong = orchestrate_here("explain", "wrong.py", "--problem", "ref.py", "--view", "quiet", folder=folder)
    none = orchestrate_here("explain", "nowhere", folder=folder)
    both = orchestrate_here("explain", "nowhere", "--kernel", "mine.py", folder=folder)
    assert wrong.status == 3 and wrong.errors.startswith("orchestrator: wrong.py is wrong: ")
    assert none.status == 2 and "'nowhere' is no run" in none.errors
    assert both.status == 2 and "leave one of the two away" in both.errors
    assert [len(each.errors.splitlines()) for each in (wrong, none, both)] == [1, 1, 1]
