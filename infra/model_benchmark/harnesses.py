"""The harnesses by name.

Another one: a file that does what `harness.Harness` says, a line here, and its name in `named.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from infra.model_benchmark import reports
from infra.model_benchmark.harness import BadHarness, Harness
from infra.model_benchmark.nki_moe import NkiMoe
from infra.model_benchmark.own_command import OwnCommand

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
