"""The real judge with the simulator, shipped over a real SSH connection: the same verdicts as on this machine."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CompileFailed, Incorrect, Measured, Step
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import Task
from infra.judging.shipment import PACKAGES, TREE, files_to_ship
from infra.targets.local import LocalTarget
from infra.targets.over_ssh import SshTarget
from infra.tasks.seed_index import SEEDS, load_seed
from tests.processes import PATIENCE_S
from tests.ssh.server import Sshd

OURS_ON_THE_INSTANCE = {"numpy", "ml_dtypes"}
FOUND_ONLY_ON_THE_INSTANCE = {"nki", "neuronxcc", "nrtpy", "nkipy", "spike", "torch", "torch_xla", "torch_neuronx"}
"""What a Neuron SDK brings; imported inside functions, where it is there."""
DONE_WITHOUT = {"numba", "bootstrap", "annotationlib"}
"""Imported where it is there; nothing needs it."""


@pytest.fixture
def target(sshd: Sshd, work: Path) -> Iterator[SshTarget]:
    target = SshTarget(
        sshd.destination, machine="trn2", remote_simulator=True, remote_python=sys.executable, settings=sshd.settings,
        root=str(work),
    )  # fmt: skip
    yield target
    target.close()


@pytest.fixture(scope="module")
def task() -> Task:
    """The smallest problem that exercises everything: silu at its small shape only."""
    silu = load_seed("silu").task()
    return replace(silu, presets=silu.presets[:1], seeds=silu.seeds[:2])


@pytest.fixture(scope="module")
def kernel() -> str:
    return (SEEDS / "silu" / "kernel.py").read_text(encoding="utf-8")


def test_a_right_kernel_is_measured_there_exactly_as_here(target: SshTarget, task: Task, kernel: str) -> None:
    steps = []
    request = EvaluationRequest(task, Candidate("c0", kernel), extra_seeds=(7,))
    there = target.evaluate(request, lambda step, detail: steps.append(step))
    assert isinstance(there, Measured) and there.simulated
    assert steps[0] is Step.UPLOAD and Step.VERIFY in steps and steps[-1] is Step.BENCHMARK
    local = LocalTarget("simulator", "trn2")
    try:
        assert there == local.evaluate(request, lambda step, detail: None)
        assert target.describe().fingerprint == local.describe().fingerprint
    finally:
        local.close()


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        pytest.param("def kernel(:\n", CompileFailed, id="syntax error", marks=pytest.mark.slow),
        pytest.param(
            "import os, signal\nos.kill(os.getppid(), signal.SIGCONT)\nraise SystemExit(0)\n",
            CompileFailed,
            id="leaves on import",
            marks=pytest.mark.slow,
        ),
        pytest.param(None, Incorrect, id="wrong result"),
    ],
)
def test_a_faulty_kernel_is_an_evaluation_and_not_an_error(target, task, kernel, source, outcome) -> None:
    if source is None:
        source = kernel.replace("nl.silu", "nl.gelu") if "nl.silu" in kernel else kernel.replace("sigmoid", "tanh")
        assert source != kernel
    got = target.evaluate(EvaluationRequest(task, Candidate("c1", source)), lambda step, detail: None)
    assert isinstance(got, outcome), got


@pytest.mark.slow
def test_a_link_cut_while_the_real_judge_works_costs_nothing(target, task, kernel, sshd) -> None:
    cut = []

    def progress(step: Step, detail: str) -> None:
        if step is Step.VERIFY and not cut:
            cut.append(detail)
            sshd.cut()

    got = target.evaluate(EvaluationRequest(task, Candidate("c2", kernel)), progress)
    assert isinstance(got, Measured) and cut


@pytest.mark.slow
def test_references_that_somebody_changed_over_there_are_not_believed(target, task, kernel, work) -> None:
    request = EvaluationRequest(task, Candidate("c3", kernel))
    first = target.evaluate(request, lambda step, detail: None)
    changed = [path for path in work.glob("scratch/*/*.npy")]
    assert isinstance(first, Measured) and changed
    for path in changed:
        np.save(path, np.zeros_like(np.load(path)))
    assert target.evaluate(request, lambda step, detail: None) == first


@pytest.mark.parametrize("remote_simulator", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_other_machine_is_examined_there_with_or_without_an_sdk(sshd, work, remote_simulator) -> None:
    target = SshTarget(
        sshd.destination, machine="trn2", remote_simulator=remote_simulator, remote_python=sys.executable,
        settings=sshd.settings, root=str(work),
    )  # fmt: skip
    try:
        report = target.examine()
    finally:
        target.close()
    assert report.simulates and report.python.startswith(sys.executable)
    assert target.clock_skew_s is not None and abs(target.clock_skew_s) < 60


@pytest.mark.slow
def test_what_is_shipped_is_enough_and_needs_nothing_but_numpy(tmp_path: Path) -> None:
    for name, file in files_to_ship().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(file.read_bytes())
        if file.suffix == ".py":
            allowed = {*PACKAGES, *OURS_ON_THE_INSTANCE, *FOUND_ONLY_ON_THE_INSTANCE, *DONE_WITHOUT}
            assert _imports(file) <= allowed | sys.stdlib_module_names, name
    done = subprocess.run(
        [sys.executable, "-m", "infra.judging.judge", "--describe", "--toolchain", "simulator", "--machine", "trn2"],
        cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0 and '"simulated": true' in done.stdout, done.stderr


def test_what_stays_at_home_stays_at_home() -> None:
    names = files_to_ship()
    assert (
        "infra/judging/judge.py" in names
        and "infra/simulator/trace_worker.py" in names
        and "nki_sim/__init__.py" in names
    )
    assert not [name for name in names if "/rules/" in name or "llm" in name or "ssh" in name or "tests" in name]
    assert not [name for name in names if "__pycache__" in name]
    assert all((TREE / name).is_file() for name in names)


def _imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found
