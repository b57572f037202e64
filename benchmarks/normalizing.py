"""The normal form of public kernels is the same kernel: checked in exact arithmetic, for docs/catalogue.md.

    python benchmarks/normalizing.py --sdk DIR --autocomp DIR --library DIR [--write docs/catalogue.md]

The directories are as in compatibility.py. Every kernel that has a case there is normalized in a copy of its checkout;
both are traced with the arguments of its case and run on the same random elements of a prime field
(nki_sim/proofs/equivalence.py). Ends with status 1 when one differs, when normalizing twice changes something or when
a comment is lost.
"""

from __future__ import annotations

import argparse
import io
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nki_sim
from accelopt_core.task import ALONE, Surroundings
from accelopt_core.transforms.base import NotAKernel, parse_kernel
from accelopt_core.transforms.normalize import normalized
from benchmarks.compatibility import REPOSITORIES, NotTraced, add_checkouts, checkouts, trace_of
from benchmarks.compatibility_cases import CASES, Case
from infra.tasks.kernel_file import surroundings_of
from infra.tasks.reference_reader import TaskInvalid
from nki_sim import program_file
from nki_sim.proofs.equivalence import Original, prove
from nki_sim.proofs.execution import Input
from nki_sim.proofs.proof import Finding

BEGIN, END = "<!-- normal form: begin -->", "<!-- normal form: end -->"
SEED = 20261122
MOST_ROWS = 60_000
"""A longer program is not proved here: only told of."""


class Traced(NamedTuple):
    program: bytes
    """Empty when it was not traced."""
    inputs: tuple[np.ndarray | None, ...]
    """Of its tensors; None for those that are drawn."""
    error: str


def traced(root: Path, case: Case) -> Traced:
    try:
        program, arguments = trace_of(root, case)
    except NotTraced as error:
        return Traced(b"", (), str(error))
    arrays = [each for each in arguments if isinstance(each, np.ndarray)]
    inputs = tuple(None if each.dtype.kind not in "iub" else each for each in arrays)
    return Traced(program_file.dumps(program), inputs, "")


def traces(root: Path, key: str, folder: Path) -> dict[str, Traced]:
    """By case, in a process of its own: two trees of one package cannot be imported into one."""
    found = folder / "traces"
    command = [sys.executable, str(Path(__file__).resolve()), f"--{key}", str(root), "--traces", str(found)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    result: dict[str, Traced] = pickle.loads(found.read_bytes())  # written by this very file
    return result


def name_of(case: Case) -> str:
    return f"{case.file} {case.function}, {case.what}"


def normalized_copy(root: Path, key: str, cases: list[Case], into: Path) -> tuple[dict[str, str], list[str]]:
    """What became of each file and function (`same`, `normalized`, or why not), and what is wrong with it."""
    repository = REPOSITORIES[key]
    for folder in repository.folders:
        shutil.copytree(root / folder, into / folder, dirs_exist_ok=True)
    became, wrong = {}, []
    for file, function in dict.fromkeys((case.file, case.function) for case in cases):
        path, name = into / file, f"{file} {function}"
        text = path.read_text(encoding="utf-8")
        before = text if re.search(r"^(import|from) .*nki", text, re.MULTILINE) else repository.preamble + text
        try:
            after = normalized(parse_kernel(before, (function,), around(path, before, function))).text
            again = normalized(parse_kernel(after, (function,), around(path, after, function))).text
        except NotAKernel as error:
            became[name] = f"not read: {error}"
            continue
        became[name] = "same" if after == before else "normalized"
        if again != after:
            wrong.append(f"{name}: normalizing twice changes something")
        if not comments(before) <= comments(after):
            wrong.append(f"{name}: lost {', '.join(comments(before) - comments(after))}")
        path.write_text(after, encoding="utf-8")
    return became, wrong


def around(path: Path, text: str, function: str) -> Surroundings:
    """The files beside it, as a user's run has them."""
    try:
        return surroundings_of(path, text, function)
    except TaskInvalid:
        return ALONE


def comments(text: str) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return Counter(token.string.strip() for token in tokens if token.type == tokenize.COMMENT)


def verdict(before: Traced, after: Traced) -> str:
    if before.error:
        return f"not traced: {before.error}"
    if after.error:
        return f"DIFFERENT: {after.error}"
    one, other = (program_file.loads(each.program) for each in (before, after))
    if len(one) != len(other):
        return f"DIFFERENT: {len(one)} instructions, then {len(other)}"
    if before.program == after.program:
        return "proved equal"
    if len(one) > MOST_ROWS:
        return f"too long to prove here: {len(one)} instructions"
    found = prove(other, Original(lambda: one, [Input(each) for each in before.inputs], SEED)).equivalence
    if found.finding is Finding.HELD:
        return "proved equal"
    kind = "DIFFERENT" if found.finding is Finding.REFUTED else "not provable"
    return f"{kind}: {found.reason}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_checkouts(parser)
    parser.add_argument("--only", default="", metavar="TEXT", help="only the cases whose file contains this")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this page")
    parser.add_argument("--traces", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    nki_sim.install()
    lines, failures = [], 0
    for key, repository, root in checkouts(options):
        cases = [c for c in CASES if c.repository == key and not c.rejected and options.only in c.file]
        if options.traces is not None:
            options.traces.write_bytes(pickle.dumps({name_of(case): traced(root, case) for case in cases}))
            return 0
        with tempfile.TemporaryDirectory(prefix="normalized-") as scratch:
            folder = Path(scratch)
            became, wrong = normalized_copy(root, key, cases, folder / "copy")
            before = traces(root, key, folder)
            after = traces(folder / "copy", key, folder)
        verdicts = Counter[str]()
        for case in cases:
            name = name_of(case)
            said = verdict(before[name], after[name])
            verdicts[said.partition(":")[0]] += 1
            if said != "proved equal":
                print(f"{name}: {said}")
        for said in wrong:
            print(said)
        failures += verdicts["DIFFERENT"] + len(wrong)
        changed = Counter(each.partition(":")[0] for each in became.values())
        unproved = verdicts["not provable"] + verdicts["too long to prove here"]
        counts = (len(became), changed["normalized"], len(cases), verdicts["proved equal"], unproved)
        row = (repository.name, *counts, verdicts["DIFFERENT"])
        lines.append(f"| {' | '.join(map(str, row))} |")
        print(lines[-1], flush=True)
    if options.write is not None:
        head = [
            "| repository | kernels | changed | cases | proved equal | not provable, or too long | different |",
            "|---|---|---|---|---|---|---|",
        ]
        before_table, _, rest = options.write.read_text(encoding="utf-8").partition(BEGIN)
        table = "\n".join([BEGIN, "", *head, *lines, "", END])
        options.write.write_text(before_table + table + rest.partition(END)[2], encoding="utf-8")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
