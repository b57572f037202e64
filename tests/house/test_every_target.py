"""What everything that evaluates candidates must hold to. What a new target is made of: docs/extending.md.

One right kernel, one wrong one and one that does not compile go through each kind; then the machine fails, and then
the target is closed. `SshTarget` goes through the same over a real sshd, in tests/ssh.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CheckFailure, CompileFailed, Evaluation, Incorrect, Measured, Step
from accelopt_core.ports import (
    EvaluationRequest,
    Progress,
    Target,
    TargetError,
    TargetInfo,
    TargetMisconfigured,
    TargetUnreachable,
)
from accelopt_core.task import ShapePreset, Task
from infra.engines.local import LocalEngine
from infra.runs.evaluation_store import EvaluationStore
from infra.targets.local import LocalTarget
from infra.targets.on_engine import EngineTarget
from infra.targets.pool import TargetPool
from infra.targets.remembering import MeteredTarget, RememberingTarget
from nki_sim.machine import MACHINES
from tests.e2e import kernels
from tests.house.structure import ROOT
from tests.infra.samples import measured

RIGHT, WRONG, BROKEN = kernels.FAST, kernels.WRONG, kernels.BROKEN
TASK = Task("sum", kernels.REFERENCE, (ShapePreset("full", (("P", 128), ("N", 2048), ("T", 1))),), seeds=(0,))
MACHINE = "trn2"


def request(source: str) -> EvaluationRequest:
    return EvaluationRequest(TASK, Candidate("c", source))


class Scripted:
    """A target that knows the answers, and fails when told to. A pool takes it as a member."""

    name = "scripted"
    width = 3
    fault: TargetError | None = None

    def describe(self) -> TargetInfo:
        if self.fault is not None:
            raise self.fault
        return TargetInfo(self.name, "scripted-1", True, MACHINE)

    describe_again = describe

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        if self.fault is not None:
            raise self.fault
        progress(Step.VERIFY, "as the script has it")
        answers: dict[str, Evaluation] = {
            RIGHT: measured(5.0),
            WRONG: Incorrect(CheckFailure(0, "full", 0, "relative error", 0.5, 2e-5)),
            BROKEN: CompileFailed("nki.isa has no tensor_plus"),
        }
        return answers[request.candidate.source]

    def owes(self, request: EvaluationRequest) -> bool:
        return False

    def remember_in(self, folder: Path) -> None: ...

    def close(self) -> None:
        self.fault = TargetUnreachable("the run has ended")


@dataclass(frozen=True)
class Kind:
    make: Callable[[Path], Target]
    """One that works."""
    fail: Callable[[Path], Target]
    """One whose machine cannot evaluate anything."""


def _failing() -> Scripted:
    inner = Scripted()
    inner.fault = TargetMisconfigured("its disk is full: free some")
    return inner


def _around(wrap: Callable[[Scripted, Path], Target]) -> Kind:
    return Kind(lambda folder: wrap(Scripted(), folder), lambda folder: wrap(_failing(), folder))


def _remembering(inner: Scripted, folder: Path) -> Target:
    return RememberingTarget(inner, EvaluationStore(folder, "run"))


KINDS: dict[str, Kind] = {
    "LocalTarget": Kind(
        lambda folder: LocalTarget("simulator", MACHINE), lambda folder: LocalTarget("no such toolchain", MACHINE)
    ),
    "EngineTarget": Kind(
        lambda folder: EngineTarget(LocalEngine(), "simulator", MACHINE),
        lambda folder: EngineTarget(LocalEngine(), "no such toolchain", MACHINE),
    ),
    "MeteredTarget": _around(lambda inner, folder: MeteredTarget(inner, lambda seconds: None)),
    "RememberingTarget": _around(_remembering),
    "TargetPool": _around(lambda inner, folder: TargetPool([inner])),
}
ELSEWHERE = {"SshTarget": "tests/ssh/test_target_end_to_end.py"}
"""What needs more than this machine, and where it goes through the same."""


def classes_in(module: ModuleType) -> dict[str, type]:
    """Of the module's own, those with a verb of a target; a protocol asks for targets and is none."""
    return {
        name: each
        for name, each in vars(module).items()
        if inspect.isclass(each) and each.__module__ == module.__name__ and not getattr(each, "_is_protocol", False)
        if any(callable(getattr(each, verb, None)) for verb in ("evaluate", "describe"))
    }


def modules() -> list[ModuleType]:
    files = sorted((ROOT / "infra" / "targets").glob("*.py"))
    return [importlib.import_module(f"infra.targets.{path.stem}") for path in files if path.stem != "__init__"]


TARGETS = {name: each for module in modules() for name, each in classes_in(module).items()}


def test_every_file_holds_a_target() -> None:
    assert not [module.__name__ for module in modules() if not classes_in(module)]


def test_every_target_goes_through_the_same() -> None:
    assert set(TARGETS) == {*KINDS, *ELSEWHERE}, "each has a line in KINDS, or its tests elsewhere"
    for name, file in ELSEWHERE.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not [word for word in (f"{name}(", "Measured", "Incorrect", "CompileFailed") if word not in text]


MADE_IN = ("infra/assembly/targets.py", "infra/assembly/run.py")
"""Where candidates are evaluated; and what a run puts around that."""


@pytest.mark.parametrize("name", TARGETS)
def test_a_run_uses_it(name: str) -> None:
    trees = [ast.parse((ROOT / file).read_text(encoding="utf-8")) for file in MADE_IN]
    calls = [node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = {function.id for function in calls if isinstance(function, ast.Name)}
    assert name in made, f"a run makes no such target: see {' and '.join(MADE_IN)}"


VERBS = ("describe", "evaluate", "close")


@pytest.mark.parametrize("each", TARGETS.values(), ids=TARGETS)
def test_it_has_the_verbs_of_a_target_as_the_protocol_has_them(each: type) -> None:
    assert isinstance(inspect.getattr_static(each, "width", None), property), "width is a property"
    assert inspect.signature(each.width.fget).return_annotation == "int"
    for verb in VERBS:
        assert inspect.isfunction(getattr(each, verb, None)), f"no {verb}"
        assert inspect.signature(getattr(each, verb)) == inspect.signature(getattr(Target, verb)), verb


def test_the_protocol_asks_for_nothing_else() -> None:
    asked = {name for name in vars(Target) if not name.startswith("_")}
    assert asked == {"width", *VERBS}


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    made = KINDS[request.param].make(tmp_path_factory.mktemp("target"))
    yield made
    made.close()


def test_it_says_what_it_is(target: Target) -> None:
    info = target.describe()
    assert isinstance(info, TargetInfo) and info.name and info.fingerprint
    assert info.machine in MACHINES, "prompts, prices and bounds are of a known machine"
    assert target.describe() == info
    assert type(target.width) is int and target.width >= 1


@pytest.mark.parametrize(("source", "kind"), [(RIGHT, Measured), (WRONG, Incorrect), (BROKEN, CompileFailed)])
def test_a_fault_of_the_kernel_is_an_evaluation(target: Target, source: str, kind: type) -> None:
    told: list[tuple[object, object]] = []
    result = target.evaluate(request(source), lambda step, detail: told.append((step, detail)))
    assert isinstance(result, kind), result
    assert told and all(isinstance(step, Step) and "\n" not in str(detail) for step, detail in told)
    if isinstance(result, Measured):
        assert result.simulated == target.describe().simulated


def check_it_raises_a_target_error(ask: Callable[[], object]) -> None:
    with pytest.raises(TargetError) as raised:
        ask()
    assert str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_of_the_machine_is_a_target_error_also_when_it_is_asked(name: str, tmp_path: Path) -> None:
    target = KINDS[name].fail(tmp_path)
    try:
        check_it_raises_a_target_error(lambda: target.evaluate(request(RIGHT), lambda step, detail: None))
        check_it_raises_a_target_error(target.describe)
    finally:
        target.close()


@pytest.mark.parametrize("name", KINDS)
def test_once_closed_it_evaluates_nothing(name: str, tmp_path: Path) -> None:
    target = KINDS[name].make(tmp_path)
    target.close()
    check_it_raises_a_target_error(lambda: target.evaluate(request(RIGHT), lambda step, detail: None))
