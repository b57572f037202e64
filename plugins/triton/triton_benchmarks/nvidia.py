"""The shipped Triton tasks on this machine's GPU: tests, verified and timed, swept, and a run by recorded replies.

    python plugins/triton/triton_benchmarks/nvidia.py [--checkpoints DIR] [--write plugins/triton/README.md]
        [--without-tests]

On a machine with an NVIDIA GPU, Triton and CUDA's bindings; `orchestrator.py doctor --language triton` says what lacks.
--write: the block of figures, in place of that of the page. Ends with status 1 where a test fails, a task is not
verified, fewer than five sweeps gain, or the run by recorded replies does not end in a faster kernel; with status 4
where there is no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from accelopt_core.languages.tunables import declared_tunables, with_value
from infra.journal import replace_file
from infra.tasks.seed_index import load_seed, seeds_of
from nki_optimizer_triton import gpu_doctor
from tests.llm.wire_server import WireServer

ROOT = Path(__file__).resolve().parents[3]
BEGIN, END = "<!-- nvidia: begin -->", "<!-- nvidia: end -->"
ROUNDS = 24
"""Of a sweep: more than any shipped kernel has values."""
LEAST_GAINING = 5
REPLAYED = "rmsnorm"
NO_GPU = 4

PLAN = json.dumps({
    "title": "another number of warps", "technique": "num-warps", "bottleneck": "memory-bound",
    "expected_gain_us": 1.0, "rationale": "more loads under way", "details": "set NUM_WARPS",
})  # fmt: skip
SUMMARY = json.dumps({"title": "Another number of warps", "summary": "More loads are under way at once."})
LESSON = json.dumps({"diagnosis": "right", "lesson": "loads were waited for", "avoid": [], "build_on": []})


@dataclass(frozen=True)
class Row:
    """One task: what its run came to, and what torch takes."""

    task: str
    run: Mapping[str, Any]
    """A run's document (`show --json`)."""
    torch: Mapping[str, Any]

    @property
    def is_verified(self) -> bool:
        return self.run["status"] == "finished" and self.run["best"]["verified_full"]

    @property
    def gains(self) -> bool:
        return bool(self.run["improved"])

    def cells(self) -> list[str]:
        best, bound = self.run["best"]["latency_us"], self.run["bound_us"]
        beside = [f"{self.torch[name]:,.1f}" if name in self.torch else "–" for name in ("torch_us", "compiled_us")]
        share = f"{100 * bound / best:.0f} %" if bound else "–"
        return [
            self.task, self.run["shape"], f"{self.run['baseline']['latency_us']:,.1f}", f"{best:,.1f}",
            f"{self.run['speedup'] or 1.0:.2f}", share, *beside,
        ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The shipped Triton tasks on this machine's GPU.")
    parser.add_argument("--checkpoints", type=Path, default=ROOT / "checkpoints-nvidia")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the figures there")
    parser.add_argument("--without-tests", action="store_true")
    options = parser.parse_args(argv)
    report = gpu_doctor.examine("h100")
    print(report.render(device_wanted=True))
    if not report.evaluates_on_device:
        why = next(iter((*report.problems, *report.missing)), "none was found")
        print(f"nvidia.py: no figures without a GPU that evaluates kernels: {why}", file=sys.stderr)
        return NO_GPU
    tested = "left out" if options.without_tests else _tests()
    rows = [_swept(seed.name, options.checkpoints) for seed in seeds_of("triton")]
    replayed = _replayed(options.checkpoints)
    text = block(report, tested, rows, replayed)
    print(text)
    if options.write is not None:
        replace_file(options.write, in_place(options.write.read_text(encoding="utf-8"), text))
    right = all(row.is_verified for row in rows) and sum(row.gains for row in rows) >= LEAST_GAINING
    return 0 if right and "failed" not in tested and replayed["improved"] else 1


def block(report: gpu_doctor.GpuReport, tested: str, rows: Sequence[Row], replayed: Mapping[str, Any]) -> str:
    """What the page says of a machine."""
    gpu = report.gpus[0]
    head = ["task", "shape", "given, µs", "swept, µs", "gain", "of the bound", "torch, µs", "torch.compile, µs"]
    no_torch = sorted({str(row.torch["why"]) for row in rows if "why" in row.torch})
    ended = "in a faster kernel" if replayed["improved"] else "without one"
    lines = [
        f"{gpu.name}, driver {report.driver or 'not told'} (CUDA {report.cuda}), "
        + ", ".join(f"{name} {version}" for name, version in report.packages)
        + f"; {datetime.date.today().isoformat()}.",
        "",
        f"Tests that need a GPU: {tested}.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row.cells()) + " |" for row in rows),
        "",
        f"{sum(row.gains for row in rows)} of {len(rows)} sweeps gain. Torch: {'; '.join(no_torch) or 'timed'}.",
        f"A run by recorded replies on {REPLAYED} ended {ended}: {replayed['speedup'] or 1.0:.2f} times as fast as its "
        "input kernel.",
    ]
    return "\n".join(lines)


def in_place(page: str, text: str) -> str:
    """The page with its block replaced. Raises ValueError where it has none."""
    before, begins, rest = page.partition(BEGIN)
    _, ends, after = rest.partition(END)
    if not begins or not ends:
        raise ValueError(f"the page has no block between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def _tests() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "plugins/triton/triton_tests/test_with_a_gpu.py"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout, file=sys.stderr)
    return done.stdout.strip().splitlines()[-1].strip("= ") if done.stdout.strip() else "failed before they began"


def _swept(task: str, checkpoints: Path) -> Row:
    run = _run(checkpoints, f"sweep-{task}", "--task", task, "--provider", "catalogue", "--rounds", str(ROUNDS))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("nvidia_torch.py")), task],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout.strip().splitlines()
    torch = json.loads(said[-1]) if said else {"why": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    return Row(task, run, torch)


def _replayed(checkpoints: Path) -> dict[str, Any]:
    """A model whose replies are known beforehand: one kernel that does not compile, then each declared value."""
    source = load_seed(REPLAYED).kernel_source
    (tunable,) = declared_tunables(source).tunables
    kernels = [source.replace("tl.sum(", "tl.total(")]
    kernels += [with_value(source, tunable, value) for value in tunable.legal if value != tunable.value]

    def answer(body: dict[str, Any]) -> str:
        system = json.dumps(body["system"])
        if "You plan optimizations" in system:
            return PLAN
        if "You write" in system:
            return f"```python\n{kernels.pop(0) if len(kernels) > 1 else kernels[0]}```\n"
        return SUMMARY if "You keep the notebook" in system else LESSON

    with WireServer(answer) as server:
        return _run(
            checkpoints, "recorded", "--task", REPLAYED, "--provider", "anthropic", "--rounds", str(len(kernels) - 1),
            environment={"ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": server.url},
        )  # fmt: skip


def _run(checkpoints: Path, run_id: str, *flags: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Its document; a run of that name that is there already is gone on with."""
    begun = ["--resume", run_id] if (checkpoints / run_id).exists() else ["--run-id", run_id]
    done = subprocess.run(
        [
            sys.executable, "orchestrator.py", "--language", "triton", *flags, *begun, "--json",
            "--checkpoints", str(checkpoints), "--memory", str(checkpoints / "memory.json"),
        ],
        cwd=ROOT, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    document: dict[str, Any] = json.loads(done.stdout)
    if "baseline" not in document or document["baseline"] is None:
        raise SystemExit(f"nvidia.py: {run_id}: {document.get('error') or document.get('reason')}")
    return document


if __name__ == "__main__":
    sys.exit(main())
