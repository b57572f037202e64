"""`kill -9` with the real target behind the run, in the middle of an evaluation too; then `--resume`."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from accelopt_core.evaluation import Evaluation, Measured, Step
from accelopt_core.ports import EvaluationRequest, Progress, Target, TargetInfo
from infra.targets.local import LocalTarget
from tests.e2e.kernels import REFERENCE
from tests.llm.wire_server import WireServer
from tests.resume.scripted_run import Kill, World, reply_to
from tests.resume.test_kill_and_resume import asked, state

SMALL = REFERENCE.replace("2048, 4", "2048, 1")
FLAGS = ("--rounds", "1", "--seeds", "1", "--extra-seeds", "1")


class TalliedTarget:
    """The real target; who began to be evaluated, and who was, is in a file that outlives the process."""

    def __init__(self, tally: Path, dies_at: tuple[str, Step] | None = None) -> None:
        self._real = LocalTarget("simulator", "trn2")
        self._tally = tally
        self._dies_at = dies_at

    @property
    def width(self) -> int:
        return self._real.width

    def describe(self) -> TargetInfo:
        return self._real.describe()

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        name = f"{request.candidate.id}{' final' if request.final else ''}"

        def watched(step: Step, detail: str) -> None:
            progress(step, detail)
            if (name, step) == self._dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

        result = self._real.evaluate(request, watched)
        with open(self._tally, "a", encoding="utf-8") as tally:
            tally.write(f"{name}\n")
        return result

    def close(self) -> None:
        self._real.close()


def world_of(folder: Path, server: WireServer) -> World:
    return World(folder, server.url, reference=SMALL, flags=FLAGS)


def target_of(world: World, dies_at: tuple[str, Step] | None = None) -> Callable[[], Target]:
    return lambda: TalliedTarget(world.folder / "tally", dies_at)


@dataclass(frozen=True)
class Undisturbed:
    final: dict[str, Any]
    requests: Counter[str]
    evaluations: Counter[str]


@pytest.fixture(scope="module")
def server() -> Iterator[WireServer]:
    with WireServer(reply_to) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(server: WireServer, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    World(tmp_path_factory.mktemp("warm") / "w", server.url).warm_up()
    world, since = world_of(tmp_path_factory.mktemp("undisturbed") / "w", server), len(server.requests)
    assert world.start(target=target_of(world)) == 0, (world.folder / "output").read_text()
    return Undisturbed(comparable(state(world)), asked(server, since), world.evaluations)


def comparable(final: dict[str, Any]) -> dict[str, Any]:
    """Without what secret seeds decide: how large the largest error was."""

    def bare(result: Evaluation) -> Evaluation:
        return replace(result, worst_rel_l2=0.0) if isinstance(result, Measured) else type(result)

    tries = [replace(t, evaluation=bare(t.evaluation), summary="") for t in final["tries"]]
    kept = {name: final[name] for name in ("best_kernel", "ending", "diff", "memory")}
    return {**kept, "tries": tries, "best": bare(final["best"].result), "calls": len(final["ledger"])}


def test_the_real_judge_tells_the_wrong_kernel_from_the_right_one(undisturbed: Undisturbed) -> None:
    tries = undisturbed.final["tries"]
    assert [t.outcome for t in tries] == ["incorrect", "improved"]
    assert undisturbed.evaluations == Counter(["input", "r001t1", "r001t2", "r001t2 final"])


@pytest.mark.parametrize(
    ("kill", "dies_at"),
    [
        (None, ("r001t2", Step.VERIFY)),
        pytest.param(None, ("r001t2 final", Step.BENCHMARK), marks=pytest.mark.slow),
        pytest.param(Kill(30, True), None, marks=pytest.mark.slow),
    ],
    ids=["while a candidate is verified", "in the last check", "between two steps"],
)
def test_killed_and_resumed_it_ends_the_same(kill, dies_at, server, undisturbed, tmp_path) -> None:
    world, since = world_of(tmp_path / "w", server), len(server.requests)
    assert world.start(kill, target_of(world, dies_at)) is None, "it was to be killed"
    assert world.start(target=target_of(world)) == 0, (world.folder / "output").read_text()
    assert comparable(state(world)) == undisturbed.final
    assert not asked(server, since) - undisturbed.requests, "no model call is repeated"
    assert world.evaluations == undisturbed.evaluations, "and no evaluation that was finished"
