"""Judges honest kernels again and again with fresh seeds: what is refused is refused by bad luck.

    python benchmarks/honest_kernels.py [--runs SUITE-ID] [--checkpoints FOLDER] [--times 30] [--tasks NAME,...]

The shipped kernels and, with --runs, the winners of a suite (`orchestrator.py --suite nkibench`), as candidates at the
smallest shape; then the forms of `tests/redteam/row_kernels.py`, which compute better than their reference or in
another order. Every input distribution, two seeds, all of them new each time. Proofs are counted by what they said.
An hour on one core. `pytest -m slow tests/mutations` does the same for other honest forms, bfloat16
among them.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Measured, explain
from accelopt_core.judging.judge import judge
from accelopt_core.judging.verification import ReferenceCache
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import Task
from infra.runs.suite import latest_suite
from infra.simulator.toolchain import SimulatorToolchain
from infra.tasks.seed_index import load_seed, seed_index
from tests.redteam.row_kernels import HONEST
from tests.redteam.row_kernels import task as row_task

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED, SECRET = 1, 1
"""Seeds; a run takes more, which are kept. Distributions are drawn with the first."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", metavar="SUITE-ID", nargs="?", const="latest", help="its winners too [the latest]")
    parser.add_argument("--checkpoints", type=Path, default=ROOT / "checkpoints", help="where those runs are")
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--tasks", metavar="NAME,...", help="only these")
    options = parser.parse_args()
    asked = options.tasks.split(",") if options.tasks else [*(seed.name for seed in seed_index()), *HONEST]
    names = [name for name in asked if name not in HONEST]
    suite = latest_suite(options.checkpoints, names) if options.runs == "latest" else options.runs
    refused = judged = 0
    for name in asked:
        if name in HONEST:
            task, forms = row_task(name), HONEST[name]
            source = next(iter(forms.values()))
            kernels = {form: Candidate("form", each, "input") for form, each in forms.items()}
        else:
            seed = load_seed(name)
            task, source = seed.task(), seed.kernel_source
            kernels = {"input": Candidate("input", source)}
            if suite is not None:
                winner = (options.checkpoints / f"{suite}.{name}" / "best_kernel.py").read_text(encoding="utf-8")
                kernels["winner"] = Candidate("winner", winner, "input")
        for which, candidate in kernels.items():
            reasons, proofs = judgements(task, source, candidate, options.times)
            judged += options.times
            refused += len(reasons)
            said = ", ".join(f"{what}: {count}" for what, count in sorted(proofs.items()))
            print(f"{name:24}{which:24}{len(reasons):3} of {options.times} refused; {said}", flush=True)
            for reason in dict.fromkeys(reasons):
                print(f"    {reason}", flush=True)
    print(f"{refused} of {judged} judgements refused an honest kernel")
    return int(refused > 0)


def judgements(task: Task, source: str, candidate: Candidate, times: int) -> tuple[list[str], Counter[str]]:
    """Why it was refused, each time that it was; and what was proved, each time that it was not. `source`: of the input
    kernel."""
    original = Candidate("input", source) if candidate.parent_id is not None else None
    reasons: list[str] = []
    proofs: Counter[str] = Counter()
    toolchain = SimulatorToolchain("trn2")
    try:
        for _ in range(times):
            drawn = [secrets.randbelow(1 << 31) for _ in range(PUBLISHED + SECRET)]
            request = EvaluationRequest(
                replace(task, presets=task.presets[:1], seeds=tuple(drawn[:PUBLISHED])),
                candidate,
                extra_seeds=tuple(drawn[PUBLISHED:]),
                original=original,
            )
            result = judge(request, toolchain, lambda step, detail: None, ReferenceCache(None))
            if isinstance(result, Measured):
                proofs.update(f"{proof.property.value} {proof.finding.value}" for proof in result.proofs)
            else:
                reasons.append(f"seeds {drawn}: {explain(result)}")
    finally:
        toolchain.close()
    return reasons, proofs


if __name__ == "__main__":
    sys.exit(main())
