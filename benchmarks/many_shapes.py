"""One kernel for many shapes: three kernels over six shapes each, tails among them, on the simulated machine.

    python benchmarks/many_shapes.py [--only NAME,...] [--checkpoints DIR] [--write docs/shapes.md [--commit HASH]]

Each is what `orchestrator.py --shapes` makes of it with the built-in catalogue. A set that is there already is gone on
with, or only read when it is finished; its table is printed as soon as it is whole. --write: each table in place of the
one that the page has of that kernel, labelled with the day the set began and the commit. Ends with status 1 where a
shape is slower than with the input kernel or not verified, or where a joined kernel saves less than 90 % of the
weighted time that tuning each shape alone saves.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from infra.journal import replace_file
from infra.runs.shape_set import SetFolder, SetTable
from infra.terminal.shape_table import markdown, print_set

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "benchmarks" / "shapes"
SEEDS = ROOT / "nkibench_seeds"
ROUNDS, PATIENCE = 12, 3
LEAST_KEPT_PERCENT = 90.0
BEGIN, END = "<!-- many shapes: begin -->", "<!-- many shapes: end -->"


@dataclass(frozen=True)
class Case:
    """A kernel in benchmarks/shapes, its table of shapes beside it, and the shipped task that it computes."""

    name: str
    task: str

    def make(self, checkpoints: Path) -> SetFolder:
        """Its set, from the beginning or from where it was. Raises subprocess.CalledProcessError."""
        folder = SetFolder(checkpoints, f"shapes-{self.name}")
        kernel, table = KERNELS / f"{self.name}.py", KERNELS / f"{self.name}.toml"
        going_on = ["--resume", folder.set_id] if folder.exists else ["--run-id", folder.set_id]
        given = ["--kernel", kernel, "--problem", SEEDS / self.task / "reference.py", "--shapes", table]
        search = ["--provider", "catalogue", "--rounds", str(ROUNDS), "--patience", str(PATIENCE)]
        kept = ["--checkpoints", checkpoints, "--memory", checkpoints / "memory.json", "--view", "quiet"]
        subprocess.run(
            [sys.executable, ROOT / "orchestrator.py", *given, *going_on, *search, *kept], cwd=ROOT, check=True,
            env={**os.environ, "COLUMNS": "160"},
        )  # fmt: skip
        return folder


CASES = (Case("matmul", "matmul"), Case("rmsnorm_matmul", "rmsnorm_matmul"), Case("attention", "gqa_full"))


def faults(name: str, table: SetTable) -> Iterator[str]:
    """What the table does not hold to, a line each."""
    if table.missing or not table.rows or not table.is_complete:
        yield f"{name}: not every shape has a result: {', '.join(table.missing) or 'the set is not complete'}"
        return
    for row in table.rows:
        if row.now_us > row.input_us:
            yield f"{name}: {row.name} is slower than the input kernel"
        if not row.verified:
            yield f"{name}: {row.name} was not verified"
    if not table.between:
        yield f"{name}: no shape between those of the set was tried"
    if table.kept_percent is not None and table.kept_percent < LEAST_KEPT_PERCENT:
        yield f"{name}: only {table.kept_percent:.1f} % of what tuning each shape alone saves"


def block(name: str, table: SetTable, day: str, commit: str) -> str:
    """Of the page, for one kernel."""
    verified = sum("verified" in row.takes for row in table.between)
    refused = len(table.between) - verified
    kept = f"{table.kept_percent:.1f} %" if table.kept_percent is not None else "-"
    said = (
        f"**{name}** (`benchmarks/shapes/{name}.py`; {day}, commit {commit}): {table.variants} variants for "
        f"{len(table.rows)} shapes, {kept} of the weighted time that tuning each shape alone saves; {verified} shapes "
        "between these take the input kernel's program"
        + (f", {refused} are refused as by the input kernel" if refused else "")
    )
    return f"{said}.\n\n{markdown(table)}\n\n"


def page(text: str, blocks: Mapping[str, str]) -> str:
    """The page with these blocks, by kernel, in place of those that it has of them; all others stay."""
    before, _, rest = text.partition(f"{BEGIN}\n")
    inside, _, after = rest.partition(END)
    there = {each.partition("**")[0]: f"**{each}" for each in re.split(r"(?m)^\*\*", inside) if each}
    there |= blocks
    written = "".join(there[case.name] for case in CASES if case.name in there)
    return f"{before}{BEGIN}\n{written}{END}{after}"


def commit_here() -> str:
    """With a plus where files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME,...", help="of " + ", ".join(case.name for case in CASES))
    parser.add_argument("--checkpoints", type=Path, default=ROOT / "checkpoints", help="where the sets are kept")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    parser.add_argument("--commit", help="that the sets were made with; otherwise that of this tree")
    options = parser.parse_args(arguments)
    known = [case.name for case in CASES]
    wanted = options.only.split(",") if options.only else known
    if stray := sorted(set(wanted) - set(known)):
        parser.error(f"--only: there is no {stray[0]}; known: {', '.join(known)}")
    tables: list[tuple[str, SetTable]] = []
    blocks: dict[str, str] = {}
    for case in (case for case in CASES if case.name in wanted):
        try:
            folder = case.make(options.checkpoints.resolve())
            table = folder.table()
        except subprocess.CalledProcessError as error:
            print(f"{case.name}: its set ended with status {error.returncode}", file=sys.stderr)
            return 1
        if table is None:
            print(f"{case.name}: there is no joined kernel", file=sys.stderr)
            return 1
        tables.append((case.name, table))
        blocks[case.name] = block(case.name, table, folder.manifest().created[:10], options.commit or commit_here())
        print(f"\n{case.name}", flush=True)
        print_set(Console(width=160), table)
    wrong = [fault for name, table in tables for fault in faults(name, table)]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"\nprocessor time of this session: {used.ru_utime + used.ru_stime:,.0f} s")
    print("\n".join(wrong) or "every shape verified, none slower than the input kernel")
    if options.write is not None:
        replace_file(options.write, page(options.write.read_text(encoding="utf-8"), blocks))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
