"""Ctrl-C once the search is over: the run ends as it would have, with its table, and the winner in the user's file."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.assembly import run
from infra.commands import optimize
from infra.terminal import report
from tests.e2e.kernels import REFERENCE, SLOW
from tests.e2e.run import orchestrate_here

AFTER_THE_SEARCH = (
    (run, "_time_compilers_own"),
    (report, "write_diff"),
    (optimize, "write_back"),
    (report, "print_end"),
)


def test_ctrl_c_in_the_last_second_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def interrupted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            asked.append(name)
            signal.raise_signal(signal.SIGINT)
            return function(*arguments)

        return call

    for module, name in AFTER_THE_SEARCH:
        monkeypatch.setattr(module, name, interrupted(name, getattr(module, name)))
    (tmp_path / "add.py").write_text(SLOW, encoding="utf-8")
    (tmp_path / "add_reference.py").write_text(REFERENCE.replace("2048", "512"), encoding="utf-8")
    flags = ("--rounds", "1", "--provider", "catalogue", "--extra-seeds", "0", "--in-place")
    ran = orchestrate_here("--kernel", "add.py", *flags, folder=tmp_path)
    assert ran.status == 0, ran.errors
    assert asked == [name for _, name in AFTER_THE_SEARCH]
    assert "add.py.bak" in ran.output and ran.folder.name in ran.output
    assert (tmp_path / "add.py").read_text(encoding="utf-8") == (ran.folder / "best_kernel.py").read_text(
        encoding="utf-8"
    )
