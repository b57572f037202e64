"""This machine as an engine: each command a process of this very tree."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from accelopt_core.ports import TargetMisconfigured, TargetUnreachable
from infra.engines.engine import ANYWHERE, Command, Completed, OnLine, Placement, Service
from infra.engines.processes import KeptProcess, KeptProcessEnded, Processes, ProcessesClosed
from infra.judging.shipment import TREE
from infra.scratch_folder import ScratchFolder


class LocalEngine:
    """Processes of this machine, in a temporary folder that goes with this one."""

    def __init__(self, places: int | None = None) -> None:
        """places: None for one for each CPU."""
        self._places = places or os.cpu_count() or 1
        self._scratch = ScratchFolder("nki-judge-")
        self._processes = Processes(TREE, self._scratch.path)

    @property
    def places(self) -> int:
        return self._places

    def begin(self) -> None:
        """Nothing to do: it is this machine."""

    def carry_out(self, command: Command, on_line: OnLine, placement: Placement = ANYWHERE) -> Completed:
        done = None
        with suppress(ProcessesClosed):
            done = self._processes.carry_out(command, on_line)
        if (
            done is None or self._processes.closed
        ):  # what an ended judge says is no verdict, and nobody may keep it for one
            raise TargetUnreachable("this machine: the run has ended, and its judges with it")
        return done

    def open(self, what: str, argv: tuple[str, ...], first: Mapping[str, Any]) -> Service:
        return _LocalAsker(KeptProcess(what, TREE, argv, first))

    def close(self) -> None:
        self._processes.close()
        self._scratch.close()


class _LocalAsker:
    def __init__(self, process: KeptProcess) -> None:
        self._process = process

    is_one_process = True

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._process.ask(job)
        except KeptProcessEnded as error:
            raise TargetMisconfigured(str(error)) from None

    def close(self) -> None:
        self._process.close()
