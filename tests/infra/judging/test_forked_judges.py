"""Judges are forked from a process that has loaded what they need; each evaluation has one of its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Crashed, Evaluation, Measured, Step, explain
from accelopt_core.ports import EvaluationRequest, TargetUnreachable
from accelopt_core.task import ShapePreset, Task
from infra.engines.engine import Command
from infra.engines.fork_server import ForkServer, ForkServerGone
from infra.engines.local import LocalEngine
from infra.engines.processes import Processes
from infra.judging.shipment import TREE
from infra.targets.local import LocalTarget
from tests.e2e import kernels
from tests.processes import alive, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each judge is started by itself")
TASK = Task("sum", kernels.REFERENCE, (ShapePreset("full", (("P", 128), ("N", 512), ("T", 1))),), seeds=(0,))
SOURCE = kernels.FAST.replace("STEP = 2048", "STEP = 512")
ENDLESS = "import nki\n@nki.jit\ndef kernel(*given):\n    while True:\n        pass\n"


@pytest.fixture
def target() -> Iterator[LocalTarget]:
    target = LocalTarget("simulator", "trn2")
    yield target
    target.close()


def evaluated(target: LocalTarget, source: str = SOURCE) -> Evaluation:
    return target.evaluate(EvaluationRequest(TASK, Candidate("c", source)), lambda step, detail: None)


def processes_of(target: LocalTarget) -> Processes:
    assert isinstance(target.engine, LocalEngine)
    return target.engine._processes


def server_of(target: LocalTarget) -> int:
    server = processes_of(target)._server
    assert server is not None, "nothing was forked"
    return server[1].pid


def judges_of(target: LocalTarget) -> list[int]:
    """That are at work."""
    return sorted(processes_of(target)._groups)


def _note(target: LocalTarget, at_work: set[int], step: Step, detail: str) -> None:
    at_work.update(judges_of(target))


def test_all_judges_are_of_one_server_and_each_judges_once(target: LocalTarget) -> None:
    seen: set[int] = set()
    servers = set()
    for _ in range(2):
        at_work: set[int] = set()
        progress = partial(_note, target, at_work)
        assert isinstance(target.evaluate(EvaluationRequest(TASK, Candidate("c", SOURCE)), progress), Measured)
        assert at_work and not seen & at_work and not any(map(alive, at_work))
        seen |= at_work
        servers.add(server_of(target))
    assert len(servers) == 1 and alive(servers.pop())


def test_when_somebody_ends_the_server_the_next_judge_is_of_another(target: LocalTarget) -> None:
    assert isinstance(evaluated(target), Measured)
    first = server_of(target)
    os.kill(first, signal.SIGKILL)
    assert isinstance(evaluated(target), Measured)
    assert server_of(target) != first


def test_a_judge_ends_with_its_server_and_that_is_said(target: LocalTarget) -> None:
    verdicts: list[Evaluation] = []
    evaluating = threading.Thread(target=lambda: verdicts.append(evaluated(target, ENDLESS)))
    evaluating.start()
    assert eventually(lambda: judges_of(target))
    (judge,) = judges_of(target)
    os.kill(server_of(target), signal.SIGKILL)
    evaluating.join()
    assert eventually(lambda: not alive(judge))
    assert isinstance(verdicts[0], Crashed) and "signal 9" in explain(verdicts[0])
    assert isinstance(evaluated(target), Measured)


def test_judges_of_threads_that_are_gone_go_on(target: LocalTarget) -> None:
    """Linux ends a process with the thread that started it."""
    verdicts: list[Evaluation] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: verdicts.append(evaluated(target)))
        thread.start()
        thread.join()
    assert all(isinstance(verdict, Measured) for verdict in verdicts)


def test_two_at_once_do_not_wait_for_each_other(target: LocalTarget) -> None:
    endless = threading.Thread(target=lambda: evaluated(target, ENDLESS))
    endless.start()
    try:
        assert eventually(lambda: judges_of(target))
        assert isinstance(evaluated(target), Measured)
        assert endless.is_alive()
    finally:
        for judge in judges_of(target):
            os.killpg(judge, signal.SIGKILL)
        endless.join()


def test_when_the_target_is_closed_nothing_is_left(target: LocalTarget) -> None:
    evaluated(target)
    server, folder = server_of(target), processes_of(target)._folder
    target.close()
    assert not alive(server) and not folder.exists()
    with pytest.raises(TargetUnreachable):
        evaluated(target)


SEEN = """
import os, sys
sys.argv.append("loaded")
loaded = 1

def main(arguments):
    held = []
    for number in range(3, 256):
        try:
            os.fstat(number)
            held.append(number)
        except OSError:
            pass
    print(sys.stdin.readline().strip(), arguments, sorted(os.environ), held, os.getsid(0) == os.getpid())
    if arguments[0] == "words":
        raise SystemExit("these words")
    return int(arguments[0])
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Ours, with a module beside it."""
    made = tmp_path / "tree"
    made.mkdir()
    for name in ("infra", "accelopt_core", "ka_extensions", "nki_sim"):
        (made / name).symlink_to(TREE / name)
    (made / "seen.py").write_text(SEEN)
    (made / "broken.py").write_text("raise SystemExit('there is no numpy here')\n")
    return made


@pytest.fixture
def processes(tree: Path, tmp_path: Path) -> Iterator[Processes]:
    folder = tmp_path / "jobs"
    folder.mkdir()
    made = Processes(tree, folder)
    yield made
    made.close()
    assert not list(folder.iterdir()), "the folder of a command goes with it"


def test_what_is_forked_has_its_own_files_variables_and_status(processes: Processes) -> None:
    def command(argument: str) -> Command:
        return Command(("-m", "seen", argument), 60.0, input="a line", loads=("seen",), environment={"MINE": "1"})

    done = processes.carry_out(command("3"), lambda line: None)
    assert processes._server is not None
    assert done.status == 3 and done.result is not None
    kept = {"PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH"} & set(os.environ)
    threads = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"}
    variables = sorted(kept | threads | {"TMPDIR", "MINE"})
    assert done.result == f"a line ['3'] {variables} [] True\n"
    done = processes.carry_out(command("words"), lambda line: None)
    assert (done.status, done.last_words) == (1, "these words")


def test_what_does_not_load_is_started_and_says_so_itself(processes: Processes) -> None:
    done = processes.carry_out(Command(("-m", "broken"), 60.0, loads=("broken",)), lambda line: None)
    assert (done.status, done.last_words) == (1, "there is no numpy here")
    assert processes._server is None and not processes._may_fork


def test_another_environment_has_another_server(processes: Processes) -> None:
    pids = []
    for value in ("1", "2", "2"):
        command = Command(("-m", "seen", "0"), 60.0, input="x", loads=("seen",), environment={"MINE": value})
        assert processes.carry_out(command, lambda line: None).status == 0
        pids.append(processes._server[1].pid)
    assert pids[0] != pids[1] == pids[2] and not alive(pids[0])


def test_nobody_can_ask_one_that_is_gone(tree: Path, tmp_path: Path) -> None:
    server = ForkServer(tree, ("seen",), dict(os.environ))
    try:
        os.kill(server.pid, signal.SIGKILL)
        with open(tmp_path / "errors", "w+b") as errors, pytest.raises(ForkServerGone):
            server.start(["0"], {}, errors)
    finally:
        server.close()


def test_what_is_forked_runs_the_module_that_its_command_names() -> None:
    with pytest.raises(ValueError, match="runs seen"):
        Command(("-m", "another"), 1.0, loads=("seen",))
