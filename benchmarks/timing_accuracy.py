"""How true the simulated time is: every row measured on a trn2, predicted, by family.

    python benchmarks/timing_accuracy.py [--quick] [--family NAME ...] [--rows]
    python benchmarks/timing_accuracy.py --write docs/timing_model.md --write-intervals --write-ties

Prints the targets it is held to and ends with status 1 when one is missed. Without --quick it takes some ten minutes:
each family is predicted once more by constants that were fitted without it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import timing_page, timing_rows
from benchmarks.device_rows import DeviceRow
from benchmarks.timing_figures import Figures, by_family, figures
from benchmarks.timing_intervals import MOST_ON_ONE_SIDE, coverage, spreads, with_coverage
from benchmarks.timing_refits import Refits
from benchmarks.timing_rows import MICRO, Outcome, Programs
from benchmarks.timing_ties import tie
from nki_sim.machine import TRN2
from nki_sim.timing import intervals, ties


@dataclass(frozen=True)
class Target:
    what: str
    families: tuple[str, ...]
    value: Callable[[Figures], float | None]
    limit: float
    """The value may not be above it."""


def _median(line: Figures) -> float | None:
    return line.median


def _p90(line: Figures) -> float | None:
    return line.p90


def _out_of_order(line: Figures) -> float | None:
    """% of the pairs that the device tells apart."""
    return 100 - 100 * line.rank.right / line.rank.pairs if line.rank and line.rank.pairs else None


def _wrongly_judged(line: Figures) -> float:
    return len(line.refused) + len(line.accepted) + len(line.too_high_bounds)


_MATMULS = ("tutorial_matmul", "ladder_fp32", "blocked_fp32", "qwen_bf16")
TARGETS = (
    Target("blocked_fp32, median", ("blocked_fp32",), _median, 3.0),
    Target("blocked_fp32, 90th percentile", ("blocked_fp32",), _p90, 8.0),
    Target("blocked_fp32, pairs out of order", ("blocked_fp32",), _out_of_order, 15.0),
    Target("blocked_fp32, bytes of spills, median", ("blocked_fp32",), lambda line: line.spill_median, 30.0),
    Target("kda_beta1, median", ("kda_beta1",), _median, 8.0),
    Target("kda_beta1, 90th percentile", ("kda_beta1",), _p90, 25.0),
    Target("qwen_bf16, median", ("qwen_bf16",), _median, 6.0),
    Target("attention_fp32, 90th percentile", ("attention_fp32",), _p90, 15.0),
    Target("tutorial_matmul, 90th percentile", ("tutorial_matmul",), _p90, 8.0),
    Target("adamw, 90th percentile", ("adamw",), _p90, 30.0),
    Target("single instructions, median", (MICRO,), _median, 15.0),
    Target("matmuls refused, accepted or faster than the bound", _MATMULS, _wrongly_judged, 0.0),
    Target("kda and streams, the same", ("kda_beta1", "streams"), _wrongly_judged, 0.0),
)
"""In % of the measured time, or of what is named; by constants that were fitted to these rows, among others."""
ACROSS_GRIDS = ("blocked_fp32",)
"""Families whose grids are shapes of one kernel: what was fitted on two must hold on the others."""


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--quick", action="store_true", help="no refits without a family")
    options.add_argument("--family", action="append", metavar="NAME", help="only this one; may be given again")
    options.add_argument("--rows", action="store_true", help="each row, too")
    options.add_argument("--write", type=Path, metavar="FILE.md", help="renew the table of this document")
    options.add_argument(
        "--write-intervals", action="store_true", help="renew the spreads that the simulator's intervals are made of"
    )
    options.add_argument(
        "--write-ties", action="store_true", help="renew the difference from which predictions are in the right order"
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser()
    options = asked.parse_args(arguments)
    writes = options.write is not None or options.write_intervals
    if writes and (options.quick or options.family):
        asked.error("--write and --write-intervals are about all rows left out: leave --quick and --family away")
    if options.write_ties and options.family:
        asked.error("--write-ties is about all rows: leave --family away")
    rows = timing_rows.all_rows()
    wanted = chosen(options.family, [*timing_rows.families(rows), MICRO])
    programs = Programs()
    outcomes = timing_rows.predict_all([row for row in rows if row.family in wanted], programs, TRN2)
    single = timing_rows.predict_micro(TRN2) if MICRO in wanted else []
    if options.rows:
        print_rows([*outcomes, *single])
    missed = False
    if not options.quick:
        apart, across = left_out(rows, outcomes, programs)
        print("Left out: each family predicted by constants that were fitted without it")
        print_figures(apart)
        missed |= print_coverage(apart)
        for family, halves in across.items():
            print(f"{family}: each half of its grids predicted by constants fitted on the other half alone")
            print_figures(halves)
    print("As the model stands: its constants were fitted to these rows, among others")
    together = [*with_coverage(outcomes, TRN2), *single]
    print_figures(together, notes=True)
    if options.write is not None:
        timing_page.write(options.write, timing_page.table(apart, together, across))
    if options.write_intervals:
        intervals.dump(spreads(apart, TRN2), intervals.SHIPPED)
    if options.write_ties:
        ties.dump(tie(outcomes, TRN2), ties.SHIPPED)
    return int(print_targets(together) or missed)


def chosen(names: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Raises SystemExit, naming the families there are, for one that is none."""
    for name in names or ():
        if name not in known:
            raise SystemExit(f"--family {name}: no such family; there are {', '.join(known)}")
    return [name for name in known if not names or name in names]


def left_out(
    rows: Sequence[DeviceRow], outcomes: Sequence[Outcome], programs: Programs
) -> tuple[list[Outcome], dict[str, list[Outcome]]]:
    """The outcomes as predicted without their family; and, of ACROSS_GRIDS, with the other half of its grids alone."""
    refits = Refits(rows, programs, TRN2)
    names = timing_rows.families(outcomes)
    found: dict[str, float] = {}
    for name in names:
        found.update(refits.without(name))
    across = {name: refits.across_grids(name) for name in ACROSS_GRIDS if name in names}
    return with_coverage(_predicted(outcomes, found), TRN2), {
        name: _predicted([row for row in outcomes if row.family == name], values) for name, values in across.items()
    }


def _predicted(outcomes: Sequence[Outcome], values: Mapping[str, float]) -> list[Outcome]:
    return [replace(row, predicted=values.get(row.id)) for row in outcomes]


def print_rows(outcomes: Sequence[Outcome]) -> None:
    print(f"{'row':<6}{'what':<56}{'predicted':>12}{'measured':>12}{'ratio':>8}")
    for row in outcomes:
        ratio = f"{row.pair[0] / row.pair[1]:>8.3f}" if row.ran_and_predicted else ""
        note = f"  {row.refusal[:60]}" if row.refusal else ""
        print(f"{row.id:<6}{row.what[:54]:<56}{_number(row.predicted)}{_number(row.measured)}{ratio}{note}")
    print()


def _number(value: float | None) -> str:
    return f"{'-':>12}" if value is None else f"{value:>12,.1f}"


COLUMNS = (
    ("rows", 5),
    ("median", 8),
    ("P90", 7),
    ("pairs right", 18),
    ("tau", 7),
    ("top-1", 7),
    ("top-3", 7),
    ("refused", 9),
    ("accepted", 10),
    ("spill", 14),
    ("inside", 8),
    ("faster/slower", 15),
    ("bounds", 8),
)


def cells(line: Figures) -> list[str]:
    """In the order of COLUMNS."""
    rank = line.rank
    pairs = f"{100 * rank.right / rank.pairs:.0f} % of {rank.pairs}" if rank is not None and rank.pairs else "-"
    return [
        str(line.rows),
        _shown(line.median),
        _shown(line.p90),
        pairs,
        "-" if rank is None or rank.tau is None else f"{round(rank.tau, 2) + 0.0:.2f}",
        _shown(rank.top_1_percent if rank else None),
        _shown(rank.top_3_percent if rank else None),
        str(len(line.refused)),
        str(len(line.accepted)),
        "-" if line.spill_median is None else f"{line.spill_median:.0f} % of {line.spilled}",
        "-" if line.coverage is None else f"{100 * line.coverage:.0f} %",
        "-" if line.faster is None or line.slower is None else f"{100 * line.faster:.0f} / {100 * line.slower:.0f} %",
        str(len(line.too_high_bounds)),
    ]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def print_figures(outcomes: Sequence[Outcome], notes: bool = False) -> None:
    """Errors and regrets in %; bounds: rows faster than the model says anything can be. `notes`: which rows."""
    found = by_family(outcomes)
    print(f"{'':<30}" + "".join(f"{name:>{width}}" for name, width in COLUMNS))
    for family, parts in found:
        for depth, line in [(0, family), *((1, part) for part in parts)]:
            text = "".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells(line), COLUMNS))
            print(f"{'  ' * depth + line.name:<30}" + text)
    for family, _ in found if notes else ():
        for what, ids in (
            ("the device ran, the model refuses", family.refused),
            ("the device refused, the model accepts", family.accepted),
            ("the bound is above the device", family.too_high_bounds),
        ):
            if ids:
                print(f"  {family.name}: {what}: {', '.join(ids)}")
    print()


def print_coverage(apart: Sequence[Outcome]) -> bool:
    """Of families that were left out, each weighing the same. Is it off the level, or on one side? None of one family.

    Either way the intervals are not what they say.
    """
    found = coverage(apart)
    if found is None:
        return False
    sides = f"{100 * found.faster:.1f} % faster, {100 * found.slower:.1f} % slower"
    print(f"Inside their interval, families alike: {100 * found.inside:.1f} %; {sides}", end="")
    print(f"  (75 to 85 %, at most {100 * MOST_ON_ONE_SIDE:g} % on one side) {'' if found.holds else 'MISSED'}\n")
    return not found.holds


def print_targets(outcomes: Sequence[Outcome]) -> bool:
    """Is one missed? Those of families that were not asked for are left out."""
    missed = False
    present = {row.family for row in outcomes}
    for target in TARGETS:
        if not present.issuperset(target.families):
            continue
        value = target.value(figures(target.what, [row for row in outcomes if row.family in target.families]))
        held = value is not None and value <= target.limit
        missed |= not held
        print(f"  {target.what:<52}{_shown(value):>6}  (at most {target.limit:g}) {'' if held else 'MISSED'}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
