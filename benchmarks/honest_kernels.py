"""Judges honest kernels again and again with fresh seeds: what is refused is refused by bad luck.

    python benchmarks/honest_kernels.py [--runs SUITE-ID] [--checkpoints FOLDER] [--times 30] [--tasks NAME,...]
    python benchmarks/honest_kernels.py --narrow [--times 30] [--tasks NAME,...]
    python benchmarks/honest_kernels.py --cases FOLDER,... [--times 30]

The shipped kernels and, with --runs, the winners of a suite (`orchestrator.py --suite nkibench`), as candidates at the
smallest shape; then the forms of `tests/redteam/row_kernels.py`, which compute better than their reference or in
another order. Every input distribution, two seeds, all of them new each time. Proofs are counted by what they said.
With --narrow in their place copies of the shipped ones whose arguments and results are bfloat16, and two that give
float8; with --cases folders that hold a kernel.py and its reference.py. An hour on one core. `pytest -m slow
tests/mutations` does the same for other honest forms, and for bfloat16 within a kernel that allows it.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Measured, explain
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import ReferenceCache
from accelopt_core.languages.nki.language import NKI
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import Task
from infra.runs.suite import latest_suite
from infra.simulator.toolchain import SimulatorToolchain
from infra.tasks.kernel_file import surroundings_of
from infra.tasks.seed_index import load_seed, seed_index, task_from_files
from tests.mutations.narrow import BFLOAT16_WITHIN, giving_float8, in_bfloat16, in_bfloat16_within
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
    parser.add_argument("--narrow", action="store_true", help="copies in bfloat16, and two that give float8")
    parser.add_argument("--cases", metavar="FOLDER,...", help="a kernel.py and its reference.py each")
    options = parser.parse_args()
    shipped = [seed.name for seed in seed_index()]
    names = options.tasks.split(",") if options.tasks else shipped + ([] if options.narrow else [*HONEST])
    refused = judged = 0
    for name, which, task, candidate, original in kernels(options, names):
        reasons, proofs = judgements(task, candidate, original, options.times)
        judged += options.times
        refused += len(reasons)
        said = ", ".join(f"{what}: {count}" for what, count in sorted(proofs.items()))
        print(f"{name:24}{which:24}{len(reasons):3} of {options.times} refused; {said}", flush=True)
        for reason in dict.fromkeys(reasons):
            print(f"    {reason}", flush=True)
    print(f"{refused} of {judged} judgements refused an honest kernel")
    return int(refused > 0)


def kernels(
    options: argparse.Namespace, names: Sequence[str]
) -> Iterator[tuple[str, str, Task, Candidate, Candidate | None]]:
    """A name, which of its kernels, its task, the kernel, and what that was made from."""
    if options.cases:
        for folder in map(Path, options.cases.split(",")):
            source = (folder / "kernel.py").read_text(encoding="utf-8")
            task = task_from_files(folder / "reference.py", name=folder.name)
            around = surroundings_of(folder / "kernel.py", source, None, NKI)
            yield folder.name, "input", replace(task, around=around), Candidate("input", source), None
        return
    if options.narrow:
        forms = (("bfloat16", in_bfloat16, names), ("bfloat16 tiles", in_bfloat16_within, BFLOAT16_WITHIN))
        for which, make, among in (*forms, ("to float8", giving_float8, ("silu", "bmm_softmax"))):
            for name in (name for name in among if name in names):
                task, source = make(name)
                yield name, which, task, Candidate("input", source), None
        return
    shipped = [name for name in names if name not in HONEST]
    suite = latest_suite(options.checkpoints, shipped) if options.runs == "latest" else options.runs
    for name in shipped:
        seed = load_seed(name)
        original = Candidate("input", seed.kernel_source)
        yield name, "input", seed.task(), original, None
        if suite is not None:
            winner = (options.checkpoints / f"{suite}.{name}" / "best_kernel.py").read_text(encoding="utf-8")
            yield name, "winner", seed.task(), Candidate("winner", winner, "input"), original
    for name in (name for name in names if name in HONEST):
        original = Candidate("input", next(iter(HONEST[name].values())))
        for form, source in HONEST[name].items():
            yield name, form, row_task(name), Candidate("form", source, "input"), original


def judgements(
    task: Task, candidate: Candidate, original: Candidate | None, times: int
) -> tuple[list[str], Counter[str]]:
    """Why it was refused, each time that it was; and what was proved, each time that it was not."""
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
