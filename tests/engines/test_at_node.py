"""What workers of one node do at the same time, and leave there. No Ray is needed: processes are what meets there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from infra.engines import at_node
from infra.engines.engine import SESSION
from infra.engines.ray_engine import bundle
from tests.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import sys, time
from pathlib import Path
from infra.engines.at_node import lay_out

folder, key, me = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def fetch():
    with open(folder / "fetched", "a") as file:
        file.write(me + "\\n")
    return (folder / "bundle").read_bytes()

(folder / me).touch()
while not (folder / "go").exists():
    time.sleep(0.001)
print(lay_out(str(folder), key, fetch))
"""


def test_workers_that_begin_together_lay_thelay_out_out_once(tmp_path: Path) -> None:
    made = bundle()
    (tmp_path / "trees").mkdir()
    (tmp_path / "bundle").write_bytes(made.data)
    names = [f"worker-{number}" for number in range(4)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), made.key, name],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in names
    ]  # fmt: skip
    try:
        until = time.monotonic() + 60
        while not all((tmp_path / name).exists() for name in names):
            assert time.monotonic() < until
            time.sleep(0.01)
        (tmp_path / "go").touch()
        said = [worker.communicate(timeout=PATIENCE_S) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [out.strip() for out, _ in said] == [str(tmp_path / "trees" / made.key)] * 4, said
    assert len((tmp_path / "fetched").read_text().splitlines()) == 1
    assert [entry.name for entry in (tmp_path / "trees").iterdir()] == [made.key], "nothing is left beside it"


class Agent:
    """Our process on a node, which has put something into the folder of session `s`."""

    def __init__(self, work: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "infra.engines.agent", str(work)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        keep = "import pathlib, sys; path = pathlib.Path(sys.argv[1]); path.mkdir(exist_ok=True); (path / 'x').touch()"
        command: dict[str, Any] = {"argv": ["-c", keep, SESSION], "limit_s": 60.0, "session": "s", "loads": []}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"command": command, "limit_s": 60.0}) + "\n")
        self.process.stdin.flush()
        assert json.loads(self.process.stdout.readline())["end"]["status"] == 0

    def end(self) -> None:
        self.process.communicate(timeout=PATIENCE_S)


def test_a_session_s_inputs_go_with_the_last_that_used_them(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    first, second = Agent(work), Agent(work)
    first.end()
    assert (work / "session-s" / "x").exists()
    second.end()
    assert not list(work.iterdir())


def test_what_killed_ones_left_goes_with_the_next_and_what_is_used_stays(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    killed = Agent(work)
    killed.process.kill()
    killed.process.communicate()
    assert (work / "session-s" / "x").exists()
    (work / "session-used").mkdir()
    held = at_node.hold(str(work / "session-used"))
    try:
        at_node.sweep(str(tmp_path))
        assert [path.name for path in work.iterdir()] == ["session-used"]
    finally:
        os.close(held)


def test_of_more_trees_than_there_is_room_for_the_oldest_that_nobody_uses_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_node, "MOST_BYTES", 2500)
    for age, name in enumerate(("new", "newer", "used", "old")):
        tree = tmp_path / "trees" / name
        tree.mkdir(parents=True)
        (tree / ".whole").write_bytes(bytes(1000))
        os.utime(tree, (time.time() - age, time.time() - age))
    held = at_node.hold(str(tmp_path / "trees" / "used"), ".whole")
    try:
        at_node.sweep(str(tmp_path))
        assert {path.name for path in (tmp_path / "trees").iterdir()} == {"new", "newer", "used"}
    finally:
        os.close(held)
