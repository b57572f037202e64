"""A repeated kernel is not measured again by accident, and what was measured serves nothing else than what it is."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import (
    Bounds,
    CheckFailure,
    CompileFailed,
    Duplicate,
    Evaluation,
    Finding,
    Implausible,
    Incorrect,
    IncumbentTiming,
    Measured,
    Profile,
    Proof,
    Property,
)
from accelopt_core.ports import EvaluationLimits, EvaluationRequest, KnownProgram, Progress, TargetInfo
from accelopt_core.task import ShapePreset, Task
from infra.journal import JournalDamaged
from infra.judging.shipment import TREE, judge_fingerprint
from infra.runs.evaluation_store import EvaluationStore
from infra.runs.evaluations import Evaluations
from infra.simulator import toolchain as simulator_toolchain
from infra.targets.remembering import RememberingTarget
from tests.infra.samples import measured

TASK = Task("silu", "", (ShapePreset("full", (("M", 4),)),))
BEST, INPUT = Candidate("r001t1", "best = 1", "input"), Candidate("input", "slow = 1")
REQUEST = EvaluationRequest(TASK, Candidate("c", "x = 1", "input"), extra_seeds=(1, 2))
WITH_INCUMBENT = replace(REQUEST, incumbent=BEST)
MEASURED = replace(measured(100.0), profile=Profile({"total_time": 1e-4}, Bounds(1.0, 0.0, 2.0, "declared")))


class CountingTarget:
    def __init__(self, *, simulated: bool, result: Evaluation | None = None, fingerprint: str = "f") -> None:
        self.info = TargetInfo("a target", fingerprint, simulated, "trn2")
        self.evaluated = 0
        self._result = result

    def describe(self) -> TargetInfo:
        return self.info

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        self.evaluated += 1
        if self._result is not None:
            return self._result
        timed = request.incumbent is not None and (request.final or not self.info.simulated)
        incumbent = IncumbentTiming(request.incumbent.content_hash, 130.0, 0.01) if timed else None
        return replace(MEASURED, incumbent=incumbent)

    def close(self) -> None: ...


Remember = Callable[..., tuple[CountingTarget, RememberingTarget]]


@pytest.fixture
def remember(tmp_path: Path) -> Remember:
    def made(
        *, simulated: bool = True, run: str = "one", result: Evaluation | None = None, fingerprint: str = "f"
    ) -> tuple[CountingTarget, RememberingTarget]:  # fmt: skip
        target = CountingTarget(simulated=simulated, result=result, fingerprint=fingerprint)
        return target, RememberingTarget(target, EvaluationStore(tmp_path, run))

    return made


def evaluate(target: RememberingTarget, request: EvaluationRequest) -> Evaluation:
    return target.evaluate(request, lambda step, detail: None)


@pytest.mark.parametrize("simulated", [True, False])
def test_the_same_kernel_is_measured_once_with_and_without_a_incumbent(remember: Remember, simulated: bool) -> None:
    for request in (REQUEST, replace(WITH_INCUMBENT, candidate=Candidate("c", "x = 2", "input"))):
        target, remembering = remember(simulated=simulated)
        first = evaluate(remembering, request)
        assert evaluate(remembering, replace(request, extra_seeds=(8, 9))) == first
        assert target.evaluated == 1


def test_two_candidates_with_one_kernel_at_the_same_time_are_measured_once(remember: Remember) -> None:
    target, remembering = remember()
    begun, results, plain = threading.Event(), [], target.evaluate

    def slow(request: EvaluationRequest, progress: Progress) -> Evaluation:
        begun.set()
        threading.Event().wait(0.1)
        return plain(request, progress)

    target.evaluate = slow  # type: ignore[method-assign]  # of this one object
    threads = [threading.Thread(target=lambda: results.append(evaluate(remembering, REQUEST))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert begun.is_set() and target.evaluated == 1 and results == [MEASURED] * 3


CHANGES: dict[str, EvaluationRequest] = {
    "another kernel": replace(REQUEST, candidate=Candidate("c", "x = 2", "input")),
    "another task": replace(REQUEST, task=replace(TASK, tolerance=1e-3)),
    "other limits": replace(REQUEST, limits=EvaluationLimits(iterations=20)),
    "more seeds": replace(REQUEST, extra_seeds=(1, 2, 3)),
    "the final check": replace(REQUEST, final=True),
    "the user's own": replace(REQUEST, candidate=Candidate("input", "x = 1")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_could_change_the_verdict_is_measured_anew(remember: Remember, change: str) -> None:
    target, remembering = remember()
    for _ in range(2):
        evaluate(remembering, REQUEST)
    assert target.evaluated == 1
    evaluate(remembering, CHANGES[change])
    assert target.evaluated == 2
    evaluate(remembering, replace(REQUEST, incumbent=BEST))
    assert target.evaluated == 2, "where time is exact a new best changes nothing"
    elsewhere, remembering = remember(fingerprint="sdk 2.33")
    evaluate(remembering, REQUEST)
    assert elsewhere.evaluated == 1


def test_a_latency_holds_against_the_incumbent_it_was_timed_with(remember: Remember) -> None:
    target, remembering = remember(simulated=False)
    evaluate(remembering, REQUEST)
    first = evaluate(remembering, WITH_INCUMBENT)
    assert target.evaluated == 2, "alone is not against the best"
    evaluate(remembering, replace(WITH_INCUMBENT, incumbent=INPUT))
    assert target.evaluated == 3
    for _ in range(2):
        assert evaluate(remembering, WITH_INCUMBENT) == first and target.evaluated == 4, (
            "the last incumbent is remembered"
        )
    target, remembering = remember(simulated=True)
    final = replace(WITH_INCUMBENT, final=True, incumbent=INPUT)
    result = evaluate(remembering, final)
    assert isinstance(result, Measured) and result.incumbent is not None
    assert result.incumbent.content_hash == INPUT.content_hash
    assert evaluate(remembering, final) == result and target.evaluated == 1
    evaluate(remembering, replace(final, incumbent=BEST))
    assert target.evaluated == 2


@pytest.mark.parametrize(
    "fault", [CompileFailed("no", 3), Incorrect(CheckFailure(0, "full", 0, "differs")), Implausible("too fast", 0.1)]
)
def test_a_fault_of_the_kernel_holds_against_every_incumbent(remember, fault) -> None:
    target, remembering = remember(simulated=False, result=fault)
    evaluate(remembering, WITH_INCUMBENT)
    assert evaluate(remembering, replace(WITH_INCUMBENT, incumbent=INPUT)) == fault and target.evaluated == 1


def test_what_was_measured_serves_only_where_it_would_be_measured_so_again(remember: Remember) -> None:
    evaluate(remember()[1], REQUEST)
    other, elsewhere = remember(run="two")
    evaluate(elsewhere, REQUEST)
    assert other.evaluated == 1
    known = replace(REQUEST, known=(KnownProgram("r001t1", ("a0",), "simulated 5.0 µs"),))
    target, remembering = remember(run="duplicates", result=Duplicate("r001t1", "simulated 5.0 µs"))
    assert evaluate(remembering, known) == evaluate(remembering, known)
    assert target.evaluated == 1
    evaluate(remembering, REQUEST)
    assert target.evaluated == 2


def test_an_unverified_latency_serves_only_where_it_would_stay_unverified(remember: Remember) -> None:
    slow = replace(MEASURED, verified_full=False)
    target, remembering = remember(result=slow)
    for below_us, times in ((90.0, 1), (80.0, 1), (110.0, 2), (None, 3)):
        evaluate(remembering, replace(REQUEST, verify_full_below_us=below_us))
        assert target.evaluated == times


def test_what_was_proved_equal_serves_a_change_of_the_catalogue_only(remember: Remember) -> None:
    proofs = tuple(Proof(each, Finding.HELD, "") for each in (Property.COVERAGE, Property.EQUIVALENCE))
    target, remembering = remember(result=replace(MEASURED, verified_full=False, proofs=proofs))
    for by_tool, times in ((True, 1), (True, 1), (False, 2)):
        evaluate(remembering, replace(REQUEST, by_tool=by_tool))
        assert target.evaluated == times


def test_an_evaluation_is_stored_once_and_in_one_step(remember: Remember, tmp_path: Path) -> None:
    _, remembering = remember()
    result = evaluate(remembering, REQUEST)
    (stored,) = tmp_path.glob("one/evaluations/*.json")
    digest = Evaluations(tmp_path / "one/evaluations").keep(result)  # as the run's log does, which only names it
    assert list(tmp_path.glob("one/evaluations/*.json")) == [stored] and stored.name.startswith(f"{digest}-")
    assert Evaluations(tmp_path / "one/evaluations").get(digest) == result


def test_a_damaged_record_is_named(remember: Remember, tmp_path: Path) -> None:
    evaluate(remember()[1], REQUEST)
    (path,) = tmp_path.glob("one/evaluations/*.json")
    _, remembering = remember()
    text = path.read_text()
    for damaged in (text[:40], "[]", "{}", text.replace('"latency_us": 100.0', '"latency_us": -1')):
        path.write_text(damaged)
        with pytest.raises(JournalDamaged, match=f"{path.name}.*delete it to measure again"):
            evaluate(remembering, REQUEST)


@pytest.mark.parametrize("changed", ["nki_sim/timing/intervals.json", "nki_sim/timing/cost.py"])
def test_a_table_of_the_simulator_decides_as_much_as_its_code(tmp_path: Path, monkeypatch, changed: str) -> None:
    """What either says is in an evaluation, so that one of before serves nobody after."""
    tree = tmp_path / "tree"
    shutil.copytree(TREE / "nki_sim", tree / "nki_sim", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(simulator_toolchain, "TREE", tree)
    before = simulator_toolchain.simulator_fingerprint("trn2", None), judge_fingerprint(tree=tree)
    judge_fingerprint.cache_clear()
    (tree / changed).write_bytes((tree / changed).read_bytes() + b"\n")
    after = simulator_toolchain.simulator_fingerprint("trn2", None), judge_fingerprint(tree=tree)
    judge_fingerprint.cache_clear()
    assert all(one != other for one, other in zip(before, after))
