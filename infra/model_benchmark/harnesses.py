"""The harnesses by name.

Another one: a file that does what `harness.Harness` says, a line here, and its name in `named.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from infra.model_benchmark import reports
from infra.model_benchmark.figures import Figures
from infra.model_benchmark.harness import REPORT, BadHarness, Command, Harness, Read
from infra.model_benchmark.nki_moe import NkiMoe
from infra.model_benchmark.reports import Reader, ReportInvalid
from infra.ssh.runner import JOB_DIR

REPORTS: Mapping[str, reports.Reader] = {"command": reports.own, "nxdi": reports.nxdi, "vllm": reports.vllm}
"""Harnesses that are a command of the user's own, and the format of its report."""


def harness_of(name: str, arguments: str | None, command: str | None) -> Harness:
    """`arguments`: flags for it, in one string. `command`: of those that are one. Raises BadHarness."""
    try:
        words = tuple(shlex.split(arguments or ""))
    except ValueError as error:
        raise BadHarness(f"harness-args: {error}: {arguments!r}") from None
    if name in REPORTS:
        if not command:
            raise BadHarness(f"{name}: which command? give --harness-command, with {{report}} for its report's path")
        return OwnCommand(name, command, REPORTS[name], words)
    if command:
        raise BadHarness(f"{name} has a command of its own: leave --harness-command away, or give --harness command")
    return NkiMoe(words)


PLACES = ("{python}", "{checkout}", "{report}", "{job}")
"""What a command may say for: the Python on the host, the checkout, the report's path, and the run's own folder, which
it is started in. No shell reads it: for one, `sh -c '...'`."""


@dataclass(frozen=True)
class OwnCommand:
    """`reader`: of the file report.json in the run's own folder."""

    name: str
    line: str
    reader: Reader
    rest: tuple[str, ...] = ()

    needs = ()
    reads = ()

    @property
    def words(self) -> tuple[str, ...]:
        return (self.line, *self.rest)

    def command(self, python: str, checkout: str, read: Read) -> Command:
        try:
            words = (*shlex.split(self.line), *self.rest)
        except ValueError as error:
            raise BadHarness(f"{self.name}: the command cannot be read: {error}") from None
        if not words:
            raise BadHarness(f"{self.name}: which command? give --harness-command")
        if not any("{report}" in word or "{job}" in word for word in words):
            raise BadHarness(f"{self.name}: the command must say where its report goes: write {{report}} for the path")
        values = dict(zip(PLACES, (python, checkout, f"{JOB_DIR}/{REPORT}", JOB_DIR)))
        return Command(tuple(_filled(word, values) for word in words), (REPORT,))

    def figures(self, files: Mapping[str, bytes], read: Read) -> Figures:
        if REPORT not in files:
            raise ReportInvalid(f"the command left no report: it is to be written to {{report}}, {{job}}/{REPORT}")
        return self.reader(REPORT, files[REPORT])


def _filled(word: str, values: Mapping[str, str]) -> str:
    for place, value in values.items():
        word = word.replace(place, value)
    return word
