"""The judge of the next evaluation loads while this one is at work; each evaluation has one of its own."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Evaluation, Measured
from accelopt_core.ports import EvaluationRequest, TargetUnreachable
from accelopt_core.task import ShapePreset, Task
from infra.engines.local import LocalEngine
from infra.targets.local import LocalTarget
from tests.e2e import kernels
from tests.processes import alive, eventually

TASK = Task("sum", kernels.REFERENCE, (ShapePreset("full", (("P", 128), ("N", 512), ("T", 1))),), seeds=(0,))
SOURCE = kernels.FAST.replace("STEP = 2048", "STEP = 512")


@pytest.fixture
def target() -> Iterator[LocalTarget]:
    target = LocalTarget("simulator", "trn2")
    yield target
    target.close()


def evaluated(target: LocalTarget) -> Evaluation:
    return target.evaluate(EvaluationRequest(TASK, Candidate("c", SOURCE)), lambda step, detail: None)


def folder_of(target: LocalTarget) -> Path:
    assert isinstance(target.engine, LocalEngine)
    return target.engine._scratch.path


def waiting(target: LocalTarget) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if "--wait" in words and any(word.startswith(f"{folder_of(target)}/") for word in words):
            found.append(int(path.parent.name))
    return [pid for pid in found if alive(pid)]


def test_the_next_one_is_loaded_and_each_judges_once(target: LocalTarget) -> None:
    assert not waiting(target), "nothing is started before it is needed"
    seen = set()
    for _ in range(2):
        assert isinstance(evaluated(target), Measured)
        (pid,) = waiting(target)
        assert pid not in seen
        seen.add(pid)


def test_one_that_was_killed_while_it_waited_is_no_verdict(target: LocalTarget) -> None:
    assert isinstance(evaluated(target), Measured)
    (pid,) = waiting(target)
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not waiting(target))
    assert isinstance(evaluated(target), Measured)


def test_nor_is_one_that_was_killed_when_it_had_its_job_and_had_not_begun(target: LocalTarget) -> None:
    assert isinstance(evaluated(target), Measured)
    (pid,) = waiting(target)
    os.kill(pid, signal.SIGSTOP)
    verdicts: list[Evaluation] = []
    evaluating = threading.Thread(target=lambda: verdicts.append(evaluated(target)))
    evaluating.start()
    assert eventually(lambda: set(waiting(target)) > {pid}), "the next one loads: this one has its job"
    os.kill(pid, signal.SIGKILL)
    evaluating.join()
    assert isinstance(verdicts[0], Measured)


def test_one_that_was_loaded_for_a_thread_that_is_gone_goes_on(target: LocalTarget) -> None:
    """Linux ends a process with the thread that started it."""
    first = threading.Thread(target=evaluated, args=(target,))
    first.start()
    first.join()
    (pid,) = waiting(target)
    verdicts: list[Evaluation] = []
    second = threading.Thread(target=lambda: verdicts.append(evaluated(target)))
    second.start()
    second.join()
    assert isinstance(verdicts[0], Measured) and pid not in waiting(target)


def test_when_the_target_is_closed_nobody_waits_and_nothing_is_left() -> None:
    target = LocalTarget("simulator", "trn2")
    evaluated(target)
    folder = folder_of(target)
    assert waiting(target)
    target.close()
    assert not waiting(target) and not folder.exists()
    with pytest.raises(TargetUnreachable):
        evaluated(target)
