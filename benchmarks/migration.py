"""How many public kernels of NKI 0.1 migrate by themselves, and equal what they were: the table of docs/migration.md.

    python benchmarks/migration.py --accelopt DIR --samples DIR --autocomp DIR [--only TEXT] [--write docs/migration.md]

The directories are checkouts of zhang677/AccelOpt, aws-neuron/nki-samples and ucb-bar/autocomp; what is not given is
left out. Nothing of theirs is kept: only names, hashes and results. Each kernel has a process and a time of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.migration_cases import CASES, Case
from nki_sim.migrate.beta1_to_current import migrate_beta1

REPOSITORIES = {"accelopt": "zhang677/AccelOpt", "samples": "aws-neuron/nki-samples", "autocomp": "ucb-bar/autocomp"}
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
PREAMBLE = (
    "import math\nimport numpy as np\nimport neuronxcc.nki as nki\nimport neuronxcc.nki.isa as nisa\n"
    "import neuronxcc.nki.language as nl\nfrom neuronxcc.nki.language import par_dim\n"
)
"""What autocomp's harnesses paste in front of a kernel that imports nothing."""
HELPERS = """
from functools import reduce
from operator import mul
def div_ceil(n, d):
    return (n + d - 1) // d
def normalize_dim(idx, rank):
    return idx if idx >= 0 else (rank + idx)
def n_elts(shape):
    return reduce(mul, shape, 1)
"""
"""Functions that autocomp's harnesses define for their kernels, written anew."""


def source_of(root: Path, case: Case) -> str:
    text = (root / case.file).read_text(encoding="utf-8")
    if case.repository == "ucb-bar/autocomp" and "import neuronxcc" not in text:
        text = PREAMBLE + HELPERS * ("div_ceil(" in text or "n_elts(" in text) * ("def div_ceil" not in text) + text
    return text


def judge(root: Path, case: Case) -> dict[str, Any]:
    """One kernel's row."""
    text = source_of(root, case)
    arguments, named = case.call(root)
    started = time.perf_counter()
    result = migrate_beta1(text, case.function, arguments, named, str(root / case.file), case.grid)
    notes = sum(finding.kind.value == "note" and finding.rule == "unreached" for finding in result.findings)
    return {
        "hash": hashlib.sha256((root / case.file).read_bytes()).hexdigest()[:12],
        "migrated": not result.left or result.proven is not None,
        "equal": bool(result.proven),
        "difference": result.difference,
        "why": "; ".join(f"[{f.rule}] {f.text}" for f in result.left[:2]),
        "left": len(result.left),
        "notes": notes,
        "seconds": time.perf_counter() - started,
        "source": result.source,
    }


def _short(case: Case) -> str:
    return case.file.removeprefix("src/nki_samples/").removeprefix("NKIBench/kernels/").removeprefix("sols/")


def row(case: Case, result: dict[str, Any]) -> str:
    why = result["why"].replace("|", "/").replace("\n", " ")[:150]
    far = result["difference"]
    if why.startswith("[time]"):
        verdict = "not finished"
    elif result["equal"]:
        verdict = "equal" if not far else f"equal within {far:.0e}"
    else:
        verdict = "DIFFERENT" if far is not None else "needs a person"
    notes = f"{result['notes']} statements not run with these arguments" if result["notes"] else ""
    said = "; ".join(filter(None, (verdict, notes, why)))
    return f"| `{_short(case)}` | `{case.function}` | `{result['hash']}` | {said} |"


def _in_process(root: Path, number: int, seconds: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(number), "--root", str(root)]
    try:
        alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # products of tiles gain nothing from threads
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=alone)
    except subprocess.TimeoutExpired:
        return _failed(root, number, f"[time] longer than {seconds:.0f} s")
    if done.returncode:
        return _failed(root, number, f"[crash] {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _failed(root: Path, number: int, why: str) -> dict[str, Any]:
    digest = hashlib.sha256((root / CASES[number].file).read_bytes()).hexdigest()[:12]
    return {
        "hash": digest,
        "migrated": False,
        "equal": False,
        "difference": None,
        "why": why,
        "left": 1,
        "notes": 0,
        "seconds": 0.0,
        "source": "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key in REPOSITORIES:
        parser.add_argument(f"--{key}", type=Path, metavar="DIR")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--seconds", type=float, default=900, help="for each kernel (default %(default)s)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this page")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="put the migrated kernels here")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(judge(options.root, CASES[options.one])))
        return 0
    lines, totals = [], Counter[str]()
    for key, repository in REPOSITORIES.items():
        root = getattr(options, key)
        for number, case in enumerate(CASES):
            if root is None or case.repository != repository or options.only not in f"{case.file}:{case.function}":
                continue
            result = _in_process(root, number, options.seconds)
            line = row(case, result)
            print(f"{line} {result['seconds']:.0f} s", flush=True)
            lines.append((repository, line))
            wrong = result["difference"] is not None and not result["equal"]
            totals.update({"kernels": 1, "equal": int(result["equal"]), "different, and said so": wrong})
            if options.keep is not None and result["source"]:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{Path(case.file).stem}__{case.function}.py").write_text(result["source"])
    share = f"{totals['equal']} of {totals['kernels']} kernels migrate by themselves and are equal"
    print(share)
    if options.write is not None:
        write(options.write, [line for _, line in lines])
    return 0


def write(page: Path, rows: list[str]) -> None:
    """Put rows into the page's table, in the order of the cases; kernels that were not run keep their rows."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    known = {_key(row): row for row in (*table.splitlines(), *rows) if row.startswith("| `")}
    out = [BEGIN, ""]
    ordered = []
    for repository in REPOSITORIES.values():
        out += [f"### {repository}", "", "| file | kernel | sha256 | result |", "|---|---|---|---|"]
        for case in CASES:
            if case.repository == repository:
                found = known.get((f"`{_short(case)}`", f"`{case.function}`"))
                line = found or f"| `{_short(case)}` | `{case.function}` | | not run |"
                ordered.append(line)
                out.append(line)
        out.append("")
    counts = Counter(re.split(" within|;", line.split("|")[4].strip())[0] for line in ordered)
    total = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    out.insert(2, f"Of {len(ordered)} kernels: {total}.\n")
    page.write_text(before + "\n".join([*out, END]) + after, encoding="utf-8")


def _key(row: str) -> tuple[str, str]:
    cells = [cell.strip() for cell in row.split("|")]
    return cells[1], cells[2]


if __name__ == "__main__":
    sys.exit(main())
