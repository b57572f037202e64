"""Whose fault it was: the machine's, the judge's end, or the candidate's; never one taken for another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CompileFailed, Crashed, Evaluation, Step
from accelopt_core.ports import EvaluationLimits, EvaluationRequest, TargetMisconfigured
from accelopt_core.task import ShapePreset, Task
from accelopt_core.toolchain import CompileError, TensorArgument, ToolchainMissing
from infra.engines import processes
from infra.simulator import toolchain as simulator_toolchain
from infra.targets.local import LocalTarget
from tests.e2e import kernels

ROOT = Path(__file__).resolve().parents[3]
TENSOR = TensorArgument((128, 512), "float32")
TASK = Task("sum", kernels.REFERENCE, (ShapePreset("full", (("P", 128), ("N", 512), ("T", 1))),), seeds=(0,))


def _broken_tree(folder: Path, broken: str) -> Path:
    """The project's packages, and a simulator that does not import."""
    for package in ("accelopt_core", "infra", "ka_extensions"):
        (folder / package).symlink_to(ROOT / package)
    (folder / "nki_sim").mkdir()
    (folder / "nki_sim/__init__.py").write_text(broken)
    return folder


@pytest.mark.parametrize("namespaces", [True, False])
def test_a_simulator_that_does_not_import_is_the_machines_fault(tmp_path, monkeypatch, namespaces) -> None:
    tree = _broken_tree(tmp_path, "raise ImportError('libgomp.so.1: cannot open shared object file')\n")
    monkeypatch.setattr(simulator_toolchain, "TREE", tree)
    toolchain = simulator_toolchain.SimulatorToolchain("trn2", namespaces=namespaces)
    with pytest.raises(ToolchainMissing, match=r"libgomp\.so\.1.*run `orchestrator.py doctor`"):
        toolchain.compile(kernels.FAST, [TENSOR, TENSOR], 60)
    toolchain.close()


@pytest.mark.parametrize(
    "source",
    [
        "raise ImportError('libgomp.so.1: cannot open shared object file')",
        "import ml_dtypes_that_is_not_there",
        "import os\nos._exit(1)",
        "import os\nfor fd in range(3, 64):\n    try: os.ftruncate(fd, 0)\n    except OSError: pass\nos._exit(1)",
    ],
)
@pytest.mark.parametrize("namespaces", [True, False])
def test_a_candidate_cannot_blame_the_machine(source: str, namespaces: bool) -> None:
    toolchain = simulator_toolchain.SimulatorToolchain("trn2", namespaces=namespaces)
    with pytest.raises(CompileError):
        toolchain.compile(source, [TENSOR, TENSOR], 60)
    toolchain.close()


@pytest.mark.parametrize("module", ["infra.judging.judge", "infra.doctor"])
@pytest.mark.parametrize("missing", ["numpy", "ml_dtypes"])
def test_a_host_without_a_package_is_told_in_one_line_what_to_install(tmp_path, module, missing) -> None:
    if missing == "ml_dtypes":
        (tmp_path / "numpy").symlink_to(Path(numpy.__file__).parent)
        for libraries in Path(numpy.__file__).parent.parent.glob("numpy.libs"):
            (tmp_path / "numpy.libs").symlink_to(libraries)
    places = [str(ROOT), str(tmp_path)]
    code = f"import runpy, sys; sys.path[:0] = {places!r}; runpy.run_module({module!r}, {{}}, '__main__')"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, "--describe"], capture_output=True, text=True)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1 and len(lines) == 1, done.stderr
    assert f"No module named '{missing}'" in lines[0] and "pip install numpy ml_dtypes" in lines[0]


PYTHON = sys.executable


def _evaluate(how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Evaluation:
    """With a judge that says that it times, and then ends itself."""
    fake = tmp_path / "python"
    fake.write_text(
        f'#!{PYTHON}\nimport os, sys\nprint(\'{{"step": "benchmark", "detail": "on it"}}\', flush=True)\n' + how
    )
    fake.chmod(0o755)
    monkeypatch.setattr(processes.sys, "executable", str(fake))
    target = LocalTarget("simulator", "trn2")
    try:
        request = EvaluationRequest(TASK, Candidate("c", kernels.FAST), EvaluationLimits())
        return target.evaluate(request, lambda step, detail: None)
    finally:
        target.close()


def test_a_judge_that_is_killed_is_a_crash_and_one_that_fails_the_machine_s_fault(monkeypatch, tmp_path) -> None:
    with monkeypatch.context() as patch:
        result = _evaluate("os.kill(os.getpid(), 9)\n", patch, tmp_path)
    assert result == Crashed(Step.BENCHMARK, "the judge was killed by signal 9: out of memory, or the candidate did it")
    with pytest.raises(TargetMisconfigured, match="status 3 and no result: out of order"):
        _evaluate("print('out of order', file=sys.stderr); sys.exit(3)\n", monkeypatch, tmp_path)


def test_the_requests_memory_limit_reaches_the_candidate_on_the_simulator() -> None:
    held = "import numpy as np\nHELD = np.zeros(3 << 30, np.uint8)\n"  # it counts against the limit, and is not touched
    candidate = Candidate("c", f"{held}raise SystemExit('it held three GiB')\n")
    said = []
    for limits in (EvaluationLimits(), EvaluationLimits(memory_bytes=2 << 30)):
        target = LocalTarget("simulator", "trn2")
        try:
            result = target.evaluate(EvaluationRequest(TASK, candidate, limits), lambda step, detail: None)
        finally:
            target.close()
        assert isinstance(result, CompileFailed)
        said.append(result.message)
    assert "it held three GiB" in said[0] and "2048 MiB" not in said[0]
    assert "2048 MiB" in said[1] and "it held three GiB" not in said[1]
