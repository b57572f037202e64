"""A run on a solution of FlashInfer-Bench's, from its data set to the winner in its format, on a pretend GPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Evaluation, Incorrect, Untimed
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import ReferenceCache
from accelopt_core.ports import EvaluationRequest, Progress, TargetInfo
from accelopt_core.task import ALONE, Surroundings
from accelopt_core.toolchain import ArgumentSpec
from infra import command_line
from infra.assembly import run
from infra.assembly.language_parts import Winner
from infra.assembly.problem import problem_of, resumed_problem
from nki_optimizer_triton.artifact import TritonArtifact
from nki_optimizer_triton.flashinfer.definition import read_definition
from nki_optimizer_triton.flashinfer.solution import kernel_of, read_solution
from nki_optimizer_triton.flashinfer.winner import write_winner
from nki_optimizer_triton.toolchain import TritonToolchain, open_triton_toolchain
from tests.infra.samples import measured
from triton_tests.flashinfer_samples import KERNEL, LARGE, RMSNORM, SMALL, definition, solution, workload, write_set
from triton_tests.pretend.gpu import PretendGpu

IN_PARTS = """

PARTS = 2
TUNABLES = {"PARTS": (1, 2)}


def run(hidden_states, weight, eps, output):
    M, N = hidden_states.shape
    step = triton.cdiv(M, PARTS)
    for first in range(0, M, step):
        rows = min(step, M - first)
        rmsnorm_rows[(rows,)](
            hidden_states[first:], weight, output[first:], N, eps, BLOCK=triton.next_power_of_2(N)
        )
"""
"""Each launch takes the pretend GPU as long: in one part it is faster."""


class Target:
    """In this process: the real judge, on the pretend GPU, which is shown what is compiled."""

    width = 1

    def __init__(self, toolchain: TritonToolchain, gpu: PretendGpu) -> None:
        self._toolchain = toolchain
        made = toolchain.compile

        def compile(
            source: str, arguments: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings = ALONE
        ) -> TritonArtifact:
            return gpu.knows(made(source, arguments, timeout_s, around))

        toolchain.compile = compile  # type: ignore[method-assign]

    def describe(self) -> TargetInfo:
        t = self._toolchain
        return TargetInfo(t.name, t.fingerprint, False, t.machine.name, t.caveat, t.installed)

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        return judge(request, self._toolchain, progress, ReferenceCache(None))

    def close(self) -> None:
        """The fixture does."""


@pytest.fixture
def target(tmp_path: Path, on_cpu: TritonToolchain) -> Iterator[Target]:
    gpu = PretendGpu(tmp_path / "gpu")
    toolchain = open_triton_toolchain(packages=str(gpu.packages))
    toolchain._compiler._kept = on_cpu._compiler._kept
    yield Target(toolchain, gpu)
    toolchain.close()


def test_a_run_ends_with_a_solution_and_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    data = tmp_path / "set"
    place, solved = write_set(data, solved=solution(KERNEL + IN_PARTS))
    about = read_definition(place)
    monkeypatch.setattr(run, "target_of", lambda settings: target)
    words = (
        "--kernel", str(solved), "--provider", "catalogue", "--rounds", "1", "--view", "quiet", "--iterations", "1",
        "--remeasure", "0", "--checkpoints", str(tmp_path / "runs"), "--memory", str(tmp_path / "memory.json"),
        "--run-id", "r1",
    )  # fmt: skip
    done = run.carry_out(command_line.read(words, {}, tmp_path))
    best = done.result.best_result
    assert done.result.best.source != done.problem.source and best.furthest is not None
    assert 0 < best.furthest.absolute < 1e-4 and 0 < best.furthest.relative < 1e-4

    kept = tmp_path / "runs" / "r1" / "flashinfer"
    written, trace = (
        kept / "solutions/rmsnorm/rmsnorm_h96/rmsnorm_h96_r1.json",
        kept / "traces/rmsnorm/rmsnorm_h96.jsonl",
    )
    assert sorted(path for path in kept.rglob("*") if path.is_file()) == [written, trace]
    again = kernel_of(read_solution(written), about, written)
    assert (again.text, again.around.function) == (done.result.best.source, "run_returning")
    document = json.loads(written.read_text())
    assert document["author"] == "nki-optimizer" and document["spec"]["target_hardware"] == ["NVIDIA H100 SXM"]

    (line,) = map(json.loads, trace.read_text().splitlines())
    given = [json.loads(text) for text in (data / "workloads/rmsnorm/rmsnorm_h96.jsonl").read_text().splitlines()]
    assert line["workload"] == next(each["workload"] for each in given if each["workload"]["uuid"] == LARGE)
    assert (line["definition"], line["solution"]) == ("rmsnorm_h96", "rmsnorm_h96_r1")
    evaluation = line["evaluation"]
    assert evaluation["status"] == "PASSED" and evaluation["environment"]["hardware"] == "NVIDIA H100 SXM"
    assert evaluation["environment"]["libs"]["triton"].startswith("3.") and evaluation["environment"]["libs"]["driver"]
    assert evaluation["performance"] == {
        "latency_ms": best.latency_us / 1e3, "reference_latency_ms": 0.0, "speedup_factor": 0.0,
    }  # fmt: skip
    assert evaluation["correctness"]["max_absolute_error"] == best.furthest.absolute
    assert evaluation["correctness"]["max_relative_error"] == best.furthest.relative
    assert evaluation["log"].startswith("the reference was not timed")
    held_by_the_suite_s_own_types(document, line)

    shutil.rmtree(data)  # a run goes on without it
    resumed = resumed_problem(done.settings, done.folder)
    assert resumed.task.content_hash == done.problem.task.content_hash and resumed.origin == done.problem.origin


def held_by_the_suite_s_own_types(document: dict[str, Any], line: dict[str, Any]) -> None:
    """Where its package is installed, by that; by the fields that it published in any case."""
    fields = {"name", "definition", "author", "spec", "sources", "description"}
    spec = {"language", "target_hardware", "entry_point", "dependencies", "destination_passing_style"}
    assert set(document) == fields and set(document["spec"]) == spec
    assert all(set(source) == {"path", "content"} for source in document["sources"])
    assert set(line) == {"definition", "workload", "solution", "evaluation"}
    assert set(line["evaluation"]) == {"status", "environment", "timestamp", "log", "correctness", "performance"}
    try:
        from flashinfer_bench.data import Solution, Trace  # type: ignore[import-not-found]
    except ImportError:
        return
    assert Solution.model_validate(document).get_entry_symbol() == "run_returning"
    assert Trace.model_validate(line).is_successful()


# --- judged without a GPU ---------------------------------------------------------------------------

PROGRESS: Progress = lambda step, detail: None  # noqa: E731


def judged(folder: Path, toolchain: TritonToolchain, **changed: Any) -> Evaluation:
    """The data set's solution, at its smaller workload alone."""
    _, solved = write_set(folder, workloads=[workload(SMALL, 3)], **changed)
    found = problem_of(command_line.read(("--kernel", str(solved)), {}, folder).settings)
    request = EvaluationRequest(found.task, Candidate("c", found.source, "input"), extra_seeds=(7,))
    return judge(request, toolchain, PROGRESS, ReferenceCache(None))


def test_a_solution_in_two_files_is_right(tmp_path: Path, on_cpu: TritonToolchain) -> None:
    body = IN_PARTS.replace("PARTS = 2\n", "PARTS = 1\n", 1)
    sources = [
        {"path": "main.py", "content": f"import triton\n\nfrom .rows import rmsnorm_rows\n{body}"},
        {"path": "rows.py", "content": KERNEL},
    ]
    result = judged(tmp_path, on_cpu, solved=solution(sources=sources))
    assert isinstance(result, Untimed) and "timing needs an NVIDIA GPU" in result.said


def test_what_is_infinite_is_wrong_by_the_suite_s_rule_where_it_is_right_by_ours(
    tmp_path: Path, on_cpu: TritonToolchain
) -> None:
    over = RMSNORM.replace("* weight", "* weight / np.where(np.arange(96) < 1, 0.0, 1.0)")
    text = KERNEL.replace("tl.store(", "scaled = scaled / tl.where(columns < 1, 0.0, 1.0)\n    tl.store(")
    result = judged(tmp_path, on_cpu, defined=definition(reference=over), solved=solution(text + IN_PARTS))
    assert isinstance(result, Incorrect)
    assert "infinite, which the suite takes for wrong" in result.failure.reason


def test_outputs_in_bfloat16_are_right_in_that_dtype(tmp_path: Path, on_cpu: TritonToolchain) -> None:
    solved = solution(KERNEL + IN_PARTS.replace("PARTS = 2", "PARTS = 1", 1))
    result = judged(tmp_path, on_cpu, defined=definition("bfloat16"), solved=solved)
    assert isinstance(result, Untimed), result


def test_an_output_of_another_dtype_is_wrong(tmp_path: Path, on_cpu: TritonToolchain) -> None:
    body = f"import torch\n{KERNEL}" + IN_PARTS.replace("output):", "):").replace(
        "    step =", "    output = torch.empty((M, N), dtype=torch.float32, device=weight.device)\n    step =", 1
    )
    solved = solution(f"{body}    return output\n", {"destination_passing_style": False})
    result = judged(tmp_path, on_cpu, defined=definition("bfloat16"), solved=solved)
    assert isinstance(result, Incorrect)
    assert "output is float32, and the definition says bfloat16" in result.failure.reason


def test_where_no_gpu_timed_it_there_is_a_solution_and_no_trace_and_it_says_why(tmp_path: Path) -> None:
    _, solved = write_set(tmp_path / "set")
    found = problem_of(command_line.read(("--kernel", str(solved)), {}, tmp_path).settings)
    assert found.origin is not None
    machine = TargetInfo("simulated", "s-1", True, "h100")
    around = Surroundings()
    for result, why in ((measured(10.0), "no GPU timed it"), (measured(10.0, simulated=False), "not executed at the")):
        winner = Winner(found.source, around, "mine.py", result, measured(20.0), machine)
        written = write_winner(tmp_path / "out", found.origin, winner, "w", np.datetime64("2026-11-25").item())
        assert written.trace is None and why in written.no_trace and f"no trace: {written.no_trace}" in written.said
        assert not (tmp_path / "out" / "traces").exists()
        document = json.loads(written.solution.read_text())
        assert document["spec"]["entry_point"] == "mine.py::run" and document["spec"]["target_hardware"] == ["h100"]
