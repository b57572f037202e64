"""The tasks of a suite side by side: each a run in a process of its own, whose evaluations go to the engine.

A run's loop and its folder stay on this machine, and so do the keys of its model; what takes long (judging, pricing) is
what an engine takes. A process that dies leaves a run that the suite goes on with, as any interrupted one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import config
from accelopt_core.judging.orphans import end_with_parent
from infra.assembly.following import ending_signals
from infra.assembly.proposing import provider_of
from infra.engines.processes import last_line
from infra.judging.shipment import TREE
from infra.llm.contenders import CATALOGUE

LOOPS_PER_CPU = 2
"""A loop waits for evaluations more than half of its time."""
MEMORY_EACH = 8 << 30
"""Bytes. In the last check of NKIBench's bmm_softmax one process holds 6.6 GB, and nothing shipped needs more."""
_OF_THE_SUITE = ("run.suite", "run.tasks_at_once", "run.task", "run.run_id", "run.resume", "run.view", "run.rounds")
_LOOK_S = 0.1


@dataclass(frozen=True)
class Ended:
    task: str
    status: int
    """As `orchestrator.py` exits."""
    said: str
    """The last line of its stderr."""


def at_once_of(settings: config.Settings) -> int:
    """How many of a suite's tasks run side by side. On the simulator here with the catalogue, one for each CPU: nothing
    else is waited for. A model may be a person's mailbox, or a server with a limit; a device times one kernel."""
    if settings.run.tasks_at_once is not None:
        return settings.run.tasks_at_once
    if settings.target.engine != "local":
        return LOOPS_PER_CPU * (os.cpu_count() or 1)
    alone = settings.target.host or provider_of(settings) != CATALOGUE
    return 1 if alone else max(1, min(os.cpu_count() or 1, _memory_bytes() // MEMORY_EACH))


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not told by this system
        return MEMORY_EACH


def share_of(settings: config.Settings, at_once: int) -> int:
    """Processes that each of so many runs keeps busy, where the user does not say."""
    return settings.target.processes or max(1, (os.cpu_count() or 1) // at_once)


def runs_side_by_side(given: Sequence[tuple[str, config.Invocation]], at_once: int) -> Iterator[Ended]:
    """Carries out the runs of these tasks, at most so many at once, and says of each how it ended, as they end.

    The first Ctrl-C lets each finish its step and begins no other; the second stops them.
    """
    waiting, running = list(given), dict[str, "_Run"]()

    def pass_on(number: int) -> None:
        for run in list(running.values()):
            run.signal(number)

    with _interruptible(pass_on) as interrupted:
        while running or (waiting and not interrupted()):
            while waiting and len(running) < at_once and not interrupted():
                task, invocation = waiting.pop(0)
                running[task] = _Run(invocation)
            for task, run in list(running.items()):
                status = run.poll()
                if status is not None:
                    del running[task]
                    yield Ended(task, status, run.last_words())
            time.sleep(_LOOK_S)


class _Run:
    """`orchestrator.py` with the settings of an invocation, whatever file or variable each came from."""

    def __init__(self, invocation: config.Invocation) -> None:
        run = replace(invocation.settings.run, view="quiet")
        quiet = replace(invocation, settings=replace(invocation.settings, run=run))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process does
        self._settings = tempfile.NamedTemporaryFile(  # noqa: SIM115  # as above
            "w", suffix=".toml", prefix="nki-suite-", encoding="utf-8"
        )
        self._settings.write(config.to_toml(quiet))
        self._settings.flush()
        given = run.resume
        again = [f"--resume={given}"] if given is not None else []
        here = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(TREE, "orchestrator.py")), "--config", self._settings.name,
             *config.to_flags(invocation, _OF_THE_SUITE), *again],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors,
            start_new_session=True, preexec_fn=lambda: end_with_parent(here),
        )  # fmt: skip

    def poll(self) -> int | None:
        return self._process.poll()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def last_words(self) -> str:
        self._errors.seek(0)
        said = last_line(self._errors.read())
        self._errors.close()
        self._settings.close()
        return said


@contextlib.contextmanager
def _interruptible(passed_on: Callable[[int], object]) -> Iterator[Callable[[], bool]]:
    asked = False

    def ask(number: int) -> None:
        nonlocal asked
        asked = True
        passed_on(signal.SIGINT)

    with ending_signals(ask):
        yield lambda: asked
