"""The whole offline suite: no network, no hardware, no keys.   python3 test_agent.py [pytest arguments]

Sets up .venv when it is missing, runs pytest, and closes with one line per area. The exit code is pytest's.
"""

from __future__ import annotations

import bootstrap

if __name__ == "__main__":
    bootstrap.enter(__file__, extra="test", create=True)

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

SECRETS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN")
"""Taken out of the environment, so that no test can spend a user's money by accident."""


MOST_WORKERS = 4
WORKER_BYTES = 2 << 30
"""That a worker and what it starts may need."""


@dataclass
class Area:
    """The tests of one folder under tests/, or of a plugin."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Tally:
    """A pytest plugin that names each failure at once and counts by area."""

    def __init__(self) -> None:
        self.areas: dict[str, Area] = {}
        self._begin = time.monotonic()
        self._not_collected: set[str] = set()
        self._terminal: pytest.TerminalReporter | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._terminal = session.config.pluginmanager.get_plugin("terminalreporter")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        area = self._area(report.nodeid)
        area.seconds += report.duration
        if report.skipped:
            area.skipped += 1
            area.reasons[_reason(report)] += 1
        elif report.failed:
            self._failed(area, report.nodeid)
        elif report.when == "call":
            area.passed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.passed or report.nodeid in self._not_collected:
            return  # every worker collects, and tells of the same file
        self._not_collected.add(report.nodeid)
        if report.failed:
            area = self._area(report.nodeid)
            self._failed(area, f"{report.nodeid} (cannot be imported)")
        elif report.skipped:
            area = self._area(report.nodeid)
            area.skipped += 1
            area.reasons[_reason(report)] += 1

    def pytest_terminal_summary(self) -> None:
        if self.areas:
            print_summary(Console(), self.areas, time.monotonic() - self._begin)

    def _failed(self, area: Area, name: str) -> None:
        area.failed += 1
        area.failures.append(name)
        if self._terminal is not None:
            self._terminal.write_line(f"\nFAILED {name} after {time.monotonic() - self._begin:.0f} s", red=True)

    def _area(self, nodeid: str) -> Area:
        parts = nodeid.split("::")[0].split("/")
        name = parts[1] if len(parts) > 2 and parts[0] in ("tests", "plugins") else "top"
        return self.areas.setdefault(name, Area())


def run_suite(root: Path, arguments: Sequence[str]) -> int:
    """pytest's exit status. The summary comes after pytest's own output, its closing line last.

    Without arguments the whole suite runs, files side by side: many tests wait for links, timeouts and other processes.
    It draws the same random cases every time, so that a change which broke nothing cannot fail it; pytest by itself
    draws new ones.
    """
    for name in SECRETS:
        os.environ.pop(name, None)
    os.chdir(root)
    workers = str(_workers())
    how = arguments or ("-n", workers, "--dist", "loadfile", "--no-loadscope-reorder", "--hypothesis-profile=ci")
    return int(pytest.main(["-p", "no:cacheprovider", *how], plugins=[Tally()]))


def _workers() -> int:
    """Two more than there are CPUs, since many tests wait for a link or a time limit."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(MOST_WORKERS, 2 + (os.cpu_count() or 1), memory // WORKER_BYTES))


def print_summary(console: Console, areas: dict[str, Area], seconds: float) -> None:
    table = Table(title=f"\nTests by area, {seconds:.0f} s", title_justify="left", box=None, padding=(0, 2))
    table.add_column("area")
    for name in ("passed", "failed", "skipped", "seconds"):
        table.add_column(name, justify="right")
    for name, area in sorted(areas.items()):
        table.add_row(
            name,
            str(area.passed),
            Text(str(area.failed), style="bold red" if area.failed else "dim"),
            Text(str(area.skipped), style="yellow" if area.skipped else "dim"),
            f"{area.seconds:.1f}",
        )
    console.print(table)
    for name, area in sorted(areas.items()):
        for reason, count in sorted(area.reasons.items()):
            console.print(Text(f"  skipped {count} in {name}: {reason}", style="yellow"))
        for nodeid in area.failures:
            console.print(Text(f"  FAILED {nodeid}", style="bold red"))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    wasxfail = getattr(report, "wasxfail", None)
    return f"known to fail: {wasxfail}" if wasxfail is not None else "no reason given"


if __name__ == "__main__":
    sys.exit(run_suite(bootstrap.ROOT, sys.argv[1:]))
