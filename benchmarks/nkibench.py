"""NKIBench on the simulated machine: latency, bound, percent of peak and engine shares of each task, full shapes.

    python benchmarks/nkibench.py                       the shipped kernels, timed (about a minute)
    python benchmarks/nkibench.py --verify              the same, and checked against their references
    python benchmarks/nkibench.py --every-tier          checked as a winner is: every seed, every distribution (an hour)
    python benchmarks/nkibench.py --runs SUITE-ID       before and after a run of `orchestrator.py --suite nkibench`
    python benchmarks/nkibench.py --from FILE.json --page     table and picture of docs/nkibench.md, from stored results

--json FILE and --svg FILE store the table and a picture of it.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Measured, Profile, explain
from accelopt_core.judging.bounds import bounds_for
from accelopt_core.languages.nki.language import NKI
from accelopt_core.ports import EvaluationRequest
from accelopt_core.toolchain import CandidateFault
from infra.journal import JournalError, replace_file
from infra.prediction.predictor import kernel_arguments
from infra.records import from_document, to_document
from infra.runs.suite import SuiteRow, SuiteTable, latest_suite, ranking_of, table_of_runs
from infra.simulator.toolchain import SimulatorToolchain
from infra.targets.local import LocalTarget
from infra.tasks.seed_index import Seed, TaskNotFound, load_seed, seed_index
from infra.terminal.suite_table import markdown, print_suite

ROOT = Path(__file__).resolve().parent.parent

MACHINE = "trn2"
"""NKIBench's own."""
BEGIN, END = "<!-- nkibench -->", "<!-- /nkibench -->"
PAGE = ROOT / "docs" / "nkibench.md"
PICTURE = ROOT / "docs" / "pictures" / "nkibench.svg"
LATEST = "latest"


class Depth(Enum):
    """How closely a kernel is looked at before its latency is believed."""

    TIMED = "no output is looked at"
    CANDIDATE = "as a candidate: every seed at the small shape, at the full the input kernel's published one"
    WINNER = "as a run's winner: every tier, with every seed and every input distribution"

    @classmethod
    def of(cls, verify: bool, every_tier: bool) -> Depth:
        return cls.WINNER if every_tier else cls.CANDIDATE if verify else cls.TIMED


class NoBlock(Exception):
    """The page has no place for the table."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", metavar="NAME,...", help="only these")
    parser.add_argument("--preset", default="full", help="shape preset to time [full]")
    parser.add_argument("--verify", action="store_true", help="also check every kernel against its reference")
    parser.add_argument(
        "--every-tier", action="store_true", help="check as a run's winner is checked, the full shape with every seed"
    )
    parser.add_argument(
        "--runs", metavar="SUITE-ID", nargs="?", const=LATEST, help="before and after, from a suite's runs [the latest]"
    )
    parser.add_argument("--checkpoints", type=Path, default=ROOT / "checkpoints", help="where those runs are")
    parser.add_argument("--fill", action="store_true", help="with --runs: time the input kernel of tasks not run yet")
    parser.add_argument("--from", dest="stored", type=Path, metavar="FILE", help="read a table that --json stored")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE")
    parser.add_argument(
        "--page", action="store_true", help=f"rewrite the block {BEGIN} of docs/nkibench.md, and its picture"
    )
    options = parser.parse_args(arguments)
    try:
        names = options.tasks.split(",") if options.tasks else [seed.name for seed in seed_index()]
        seeds = [load_seed(name) for name in names]
        if options.stored is not None:
            table = from_document(SuiteTable, json.loads(options.stored.read_bytes()), str(options.stored))
        elif options.runs is not None:
            suite_id = latest_suite(options.checkpoints, names) if options.runs == LATEST else options.runs
            table = table_of_runs(options.checkpoints, suite_id, names)
            if options.fill:
                table = filled(table, seeds)
        else:
            table = measure(seeds, options.preset, Depth.of(options.verify, options.every_tier))
        print_suite(Console(), table)
        print_engines(table)
        if options.json is not None:
            replace_file(options.json, json.dumps(to_document(table), indent=1) + "\n")
        for path in [options.svg] * (options.svg is not None) + [PICTURE] * options.page:
            replace_file(path, picture(table))
        if options.page:
            replace_file(PAGE, with_block(PAGE.read_text(encoding="utf-8"), markdown(table)))
    except (JournalError, TaskNotFound, NoBlock, OSError, ValueError) as error:
        print(f"nkibench: {error}", file=sys.stderr)
        return 2
    return int(bool(table.missing))


# --- measuring ------------------------------------------------------------------------------------


def measure(seeds: Sequence[Seed], preset: str, depth: Depth) -> SuiteTable:
    """The shipped kernels, one after the other; a task whose kernel fails is in `missing`, with the reason."""
    began = time.monotonic()
    rows, missing = [], {}
    for seed in seeds:
        presets = {p.name: p for p in seed.presets}
        if preset not in presets:
            missing[seed.name] = f"has no preset {preset!r}, only {', '.join(presets)}"
            continue
        result = timed(seed, preset) if depth is Depth.TIMED else verified(seed, preset, depth)
        if isinstance(result, str):
            missing[seed.name] = result
            continue
        bounds = result.profile.bounds
        shape = presets[preset].describe()
        rows.append(SuiteRow(seed.name, shape, bounds.peak_us, bounds.limiter, ranking_of(result)))
        print(f"{seed.name:24}{result.latency_us:>12,.1f} µs {result.percent_of_peak:>6.1f} %", file=sys.stderr)
        for check in result.checks:
            print(f"{'':24}  {check}", file=sys.stderr)
    return SuiteTable(
        f"simulated {MACHINE}", True, NKI.peaks(MACHINE), tuple(rows), missing, time.monotonic() - began
    )  # fmt: skip


def filled(table: SuiteTable, seeds: Sequence[Seed]) -> SuiteTable:
    """With a row for every task that the suite has not come to: its input kernel, timed, at the full shape."""
    rest = measure([seed for seed in seeds if seed.name in table.missing], "full", Depth.TIMED)
    found = {row.task: row for row in (*table.rows, *(replace(row, note="not run yet") for row in rest.rows))}
    rows = tuple(found[seed.name] for seed in seeds if seed.name in found)
    return replace(table, rows=rows, missing=rest.missing)


def timed(seed: Seed, preset: str) -> Measured | str:
    """Compiled and timed; no output is looked at."""
    task = replace(seed.task(), presets=tuple(p for p in seed.presets if p.name == preset))
    toolchain = SimulatorToolchain(MACHINE)
    try:
        artifact = toolchain.compile(seed.kernel_source, kernel_arguments(task)[-1], timeout_s=300)
        facts = toolchain.facts(artifact)
        us = toolchain.estimate_us(artifact)
    except CandidateFault as error:
        return f"does not compile: {error}"
    finally:
        toolchain.close()
    profile = Profile(dict(facts.fields), bounds_for(task, facts, toolchain.machine), facts.hot_lines)
    return Measured(us, us, us, 1, True, toolchain.name, profile, verified_full=False, contested=facts.contested)


def verified(seed: Seed, preset: str, depth: Depth) -> Measured | str:
    """Judged by the judge of a run, at the small shape and at this one."""
    small, chosen = seed.presets[0], next(p for p in seed.presets if p.name == preset)
    task = replace(seed.task(), presets=(small,) if small is chosen else (small, chosen))
    target = LocalTarget("simulator", "trn2")
    try:
        request = EvaluationRequest(
            task,
            Candidate("input", seed.kernel_source),
            extra_seeds=tuple(secrets.randbelow(1 << 31) for _ in range(2)),
            final=depth is Depth.WINNER,
        )
        result = target.evaluate(request, lambda step, detail: None)
    finally:
        target.close()
    return result if isinstance(result, Measured) else explain(result)


# --- showing --------------------------------------------------------------------------------------


def print_engines(table: SuiteTable) -> None:
    engines = ("tensor", "vector", "scalar", "gpsimd", "dma")
    print(f"\n{'busy % of the time':24}" + "".join(f"{name:>9}" for name in engines))
    for row in table.rows:
        shares = (row.after or row.before).engine_percent
        print(f"{row.task:24}" + "".join(f"{shares.get(name, 0.0):>9.1f}" for name in engines))


def with_block(text: str, block: str) -> str:
    """`text` with what stands between the two marks replaced. Raises NoBlock."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise NoBlock(f"{PAGE.name} has no {BEGIN} ... {END}: put the two lines where the table is to stand")
    return f"{head}{BEGIN}\n\n{block}\n\n{END}{tail}"


def picture(table: SuiteTable) -> str:
    """Bars of percent of peak, before and after, as SVG that needs no fonts or scripts of ours."""
    row_height, left, width = 34, 190, 460
    bars = [(row.task, row.before, row.after) for row in table.rows]
    values = [(name, b.percent_of_peak, a.percent_of_peak if a else b.percent_of_peak) for name, b, a in bars]
    values.append(("geometric mean", table.before_percent, table.after_percent))
    longest = width * max(100.0, *(after for _, _, after in values)) / 100
    height = 58 + row_height * (len(table.rows) + 1)
    label = "simulated " if table.simulated else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + longest + 60:.0f}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="15">NKIBench, {label}percent of peak: '
        '<tspan fill="#9aa5b1">input kernel</tspan>, <tspan fill="#1f7a4d">best kernel</tspan></text>',
    ]
    for percent in range(0, 101, 20):
        x = left + width * percent / 100
        parts.append(f'<line x1="{x:.1f}" y1="40" x2="{x:.1f}" y2="{height - 8}" stroke="#e4e7eb"/>')
    for at, (name, before, after) in enumerate(values):
        y = 48 + row_height * at
        parts += [
            f'<text x="{left - 10}" y="{y + 17}" text-anchor="end">{name}</text>',
            f'<rect x="{left}" y="{y}" width="{width * before / 100:.1f}" height="10" fill="#9aa5b1"/>',
            f'<rect x="{left}" y="{y + 11}" width="{width * after / 100:.1f}" height="13" fill="#1f7a4d"/>',
            f'<text x="{left + width * max(before, after) / 100 + 6:.1f}" y="{y + 17}">{after:.1f}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
