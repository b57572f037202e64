"""Our process on a node of a cluster, started there from the tree that was sent: a line of JSON in, lines out.

    python -m infra.engines.agent FOLDER [CORE,CORE,...]

In: `{"command": {...}, "limit_s": S}` or `{"question": {"what", "argv", "first", "job"}, "limit_s": S}`. Out, for an
command, `{"line": ...}` for each that it prints; then one `{"end": {...}}`, `{"answer": {...}}` or `{"failed": "why"}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infra.devices.share import CORES_VARIABLE
from infra.engines.at_node import drop, hold
from infra.engines.engine import Command
from infra.engines.processes import KeptProcess, KeptProcessEnded, Processes

_MOST_KEPT = 2
"""Processes that stay for the next question, of one worker: each holds the simulator in memory."""


def main(folder: str, cores: str) -> int:
    own, tree = Path(folder, f"agent-{secrets.token_hex(8)}"), Path.cwd()
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
    if cores:
        environment[CORES_VARIABLE] = cores
    desk = Desk(tree, own, environment)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines, desk), daemon=True).start()
    while line := lines.get():
        for said in desk.serve(json.loads(line)):
            _say(said)
    return 0


def _read(lines: queue.SimpleQueue[str], desk: Desk) -> None:
    """Its input ends with the worker that started it, however that ended: then all that it does ends too."""
    for line in sys.stdin:
        lines.put(line)
    desk.close()
    os._exit(0)


def _say(said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


class Desk:
    """Serves one message after the other."""

    def __init__(self, tree: Path, folder: Path, environment: dict[str, str]) -> None:
        self._tree, self._environment = tree, environment
        self._sessions = folder.parent
        self._held = {str(folder): hold(str(folder))}
        """Folders that stay as long as somebody works in them."""
        self._processes = Processes(tree, folder, environment, folder.parent, end_with_this_one=True)
        self._kept: dict[str, KeptProcess] = {}

    def serve(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        try:
            if "command" in message:
                command = command_from(message["command"])
                session = str(self._sessions / f"session-{command.session}")
                if command.session and session not in self._held:
                    self._held[session] = hold(session)
                done = self._processes.carry_out(command, lambda line: _say({"line": line}))
                return [{"end": asdict(done)}]
            return [{"answer": self._answer(message["question"])}]
        except KeptProcessEnded as error:
            return [{"failed": str(error)}]
        except OSError as error:
            return [{"failed": f"{error}: is its disk full, or its memory used up?"}]

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        key = json.dumps([question["argv"], question["first"]], sort_keys=True)
        process = self._kept.pop(key, None)
        if process is None:
            while len(self._kept) >= _MOST_KEPT:
                self._kept.pop(next(iter(self._kept))).close()
            process = KeptProcess(
                question["what"], self._tree, tuple(question["argv"]), question["first"], self._environment
            )
        try:
            answer = process.ask(question["job"])
        except KeptProcessEnded:
            process.close()
            raise
        self._kept[key] = process  # the last to be used is the last to go
        return answer

    def close(self) -> None:
        self._processes.close()
        for process in list(self._kept.values()):
            with contextlib.suppress(OSError):
                process.close()
        for folder, held in self._held.items():
            os.close(held)
            drop(folder)


def command_from(data: dict[str, Any]) -> Command:
    """Raises KeyError and TypeError for what is none."""
    return Command(**{**data, "argv": tuple(data["argv"]), "loads": tuple(data["loads"])})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
