"""Triton kernels through the command line: on a pretend GPU through everything that may become of an attempt; and
without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from accelopt_core.toolchain import TensorArgument
from infra.devices.leases import FOLDER_VARIABLE
from infra.tasks.seed_index import load_seed
from nki_optimizer_triton.gpu_share import PACKAGES_VARIABLE
from nki_optimizer_triton.toolchain import open_triton_toolchain
from tests.e2e.run import Ran, orchestrate
from tests.llm.wire_server import Answer, Says, WireServer
from triton_tests.pretend.gpu import PretendGpu

SEED = load_seed("rmsnorm").kernel_source
TASK = ("--language", "triton", "--task", "rmsnorm", "--preset", "small")
SPECS = (TensorArgument((64, 1000), "float32"), TensorArgument((1000,), "float32"))

PLAN = json.dumps({
    "title": "another number of stages", "technique": "stages", "bottleneck": "memory-bound", "expected_gain_us": 10.0,
    "rationale": "loads wait for each other", "details": "set num_stages",
})  # fmt: skip
OTHER_PLAN = PLAN.replace('"stages"', '"deeper-pipeline"').replace("another number of", "many more")
"""By the last round the first idea has failed too often to be tried again."""
SUMMARY = json.dumps({"title": "More stages", "summary": "Loads of the next row overlap with this one's sums."})
LESSON = json.dumps({"diagnosis": "right", "lesson": "latency of loads", "avoid": [], "build_on": ["stages"]})
PROSE = "I would rather talk about the weather."


def kernel(name: str, stages: int) -> str:
    """Another program each: by its name the pretend GPU knows how it is to behave."""
    return SEED.replace("rmsnorm_rows", name).replace("=NUM_WARPS)", f"=NUM_WARPS, num_stages={stages})")


IMPROVED, KEPT, REVERTED, FAST = kernel("improved", 2), kernel("kept", 4), kernel("reverted", 5), kernel("fast", 6)
CRASHES, HANGS, IMPLAUSIBLE = kernel("crashes", 1), kernel("hangs", 7), kernel("implausible", 8)
WRONG = kernel("wrong", 9).replace("1e-6", "1e-1")
BROKEN = kernel("broken", 2).replace("tl.sqrt", "tl.square_root")
IN_OTHER_WORDS = SEED.replace("values", "elements")

TRIED = [
    (WRONG, "incorrect"), (BROKEN, "compile_failed"), (PROSE, "no_kernel"), (IMPROVED, "improved"),
    (IN_OTHER_WORDS, "duplicate"), (CRASHES, "crashed"), (IMPLAUSIBLE, "implausible"), (KEPT, "kept"),
    (HANGS, "timed_out"), (REVERTED, "reverted"),
]  # fmt: skip
"""Four rounds; an implausible kernel ends one, since it is not repaired. In the fifth there is no plan, in the sixth no
answer, and in the last the fastest kernel."""

BEHAVES = {
    "us_of": {"rmsnorm_rows": 80.0, "improved": 60.0, "kept": 61.0, "reverted": 200.0, "fast": 30.0,
              "implausible": 0.05},
    "hangs_in": ["hangs"],
    "kernel_fails": {"crashes": "CUDA_ERROR_ILLEGAL_ADDRESS"},
}  # fmt: skip


class Model:
    """Answers by role, each role its replies in their order."""

    def __init__(self) -> None:
        codes = [text if text is PROSE else f"```python\n{text}```\n" for text, _ in TRIED]
        plans = [*[PLAN] * 4, PROSE, PROSE, Says("", stop="refusal"), OTHER_PLAN]
        self._plans: Iterator[Answer] = iter(plans)
        self._codes = iter([*codes, f"```python\n{FAST}```\n"])

    def __call__(self, body: dict[str, Any]) -> Answer:
        system = json.dumps(body["system"])
        if "You plan optimizations" in system:
            return next(self._plans)
        if "You write" in system:
            return next(self._codes)
        return SUMMARY if "You keep the notebook" in system else LESSON


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> PretendGpu:
    """Knows the kernels of all that compile."""
    gpu = PretendGpu(tmp_path_factory.mktemp("gpu"), **BEHAVES)
    toolchain = open_triton_toolchain("h100", on_device=False)
    for source in (SEED, IMPROVED, KEPT, REVERTED, FAST, CRASHES, HANGS, IMPLAUSIBLE, WRONG):
        gpu.knows_by_name(toolchain.compile(source, SPECS, 600))
    toolchain.close()
    return gpu


def with_gpu(gpu: PretendGpu, folder: Path) -> dict[str, str]:
    return {PACKAGES_VARIABLE: str(gpu.packages), FOLDER_VARIABLE: str(folder / "leases")}


@dataclass(frozen=True)
class Told:
    ran: Ran
    asked: list[str]


@pytest.fixture(scope="module")
def told(gpu: PretendGpu, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("run")
    with WireServer(Model()) as server:
        environment = {"ANTHROPIC_API_KEY": "sk-test", "ANTHROPIC_BASE_URL": server.url, **with_gpu(gpu, folder)}
        ran = orchestrate(
            *TASK, "--rounds", "7", "--patience", "9", "--run-timeout", "90", folder=folder, environment=environment,
            timeout_s=1500,
        )  # fmt: skip
        return Told(ran, [request.last_user_message for request in server.requests])


@pytest.mark.slow
def test_a_run_goes_through_every_outcome_and_ends_in_a_verified_faster_kernel(told: Told) -> None:
    ran = told.ran
    assert ran.status == 0, ran.errors + ran.output
    assert ran.outcomes() == [*(outcome for _, outcome in TRIED), "no_plan", "model_failed", "improved"]
    assert (ran.folder / "best_kernel.py").read_text(encoding="utf-8").strip() == FAST.strip()
    assert ran.speedup == pytest.approx(80 / 30, rel=0.05)
    assert "NVIDIA H100 SXM (Triton 3." in ran.output and "simulated" not in ran.output


@pytest.mark.slow
def test_every_fault_is_fed_back_in_words_of_the_kernel(told: Told) -> None:
    back = "\n".join(told.asked)
    assert "outputs differ" in back and "square_root" in back
    assert "the same program as input" in back
    assert "kernel crashes on the GPU: it reads or writes memory that is not there" in back
    assert "516,000 bytes declared by the task" in back and "timed out while it was to run (limit 90 s)" in back


@pytest.mark.slow
def test_the_catalogue_sweeps_what_a_kernel_declares_and_says_when_nothing_is_gained(
    gpu: PretendGpu, tmp_path: Path
) -> None:
    ran = orchestrate(
        *TASK, "--rounds", "1", "--provider", "catalogue", folder=tmp_path, environment=with_gpu(gpu, tmp_path),
        timeout_s=900,
    )  # fmt: skip
    assert ran.status == 0, ran.errors + ran.output
    assert set(ran.outcomes()) == {"no_improvement"} and ran.speedup == pytest.approx(1.0, rel=0.02)


@pytest.mark.slow
def test_without_a_gpu_the_input_kernel_is_checked_and_one_line_says_what_a_run_needs(tmp_path: Path) -> None:
    ran = orchestrate(*TASK, folder=tmp_path, timeout_s=600)
    assert ran.status == 4, ran.errors + ran.output
    (line,) = ran.errors.splitlines()
    assert "nki_optimizer_triton/seeds/rmsnorm/kernel.py is right, but not timed: timing needs an NVIDIA GPU (" in line
    assert "name a machine that has one: `orchestrator.py USER@HOST --language triton ...`" in line
    assert "`evaluate` checks kernels without" in line
    assert not (ran.folder / "experiments.jsonl").exists(), "no candidate was asked for"
    assert ran.document("manifest.json")["status"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "status", "said"), [(SEED, 0, "right, but not timed"), (WRONG, 3, "outputs differ")]
)
def test_evaluate_checks_kernels_without_a_gpu(source: str, status: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(source, encoding="utf-8")
    reference = load_seed("rmsnorm").reference_path.read_text(encoding="utf-8")
    (tmp_path / "ref.py").write_text(reference.replace("8192", "64").replace("4096", "1000"), encoding="utf-8")
    ran = orchestrate("evaluate", "--kernel", "k.py", "--problem", "ref.py", folder=tmp_path, timeout_s=600)
    assert ran.status == status and said in ran.output + ran.errors, ran.errors + ran.output
