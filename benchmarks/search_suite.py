"""Ways to search, replayed on NKIBench with the built-in catalogue: the fastest right kernel so far against evaluations
and against the evaluator's seconds.

    python benchmarks/search_suite.py --folder DIR [--tasks NAME,...] [--seeds N] [--most N] [--write docs/search.md]

--folder keeps what the catalogue, the simulator and the judge said, so that the next replay asks them nothing twice,
and one that was ended goes on. All processor time is of one core. Ends with status 1 where after the evaluations of a
run another strategy's geometric mean is above that of the loop's default by more than prices can be told apart.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accelopt_core.evaluation import Measured, explain
from benchmarks import search
from benchmarks.search_catalogue import CatalogueGraph
from benchmarks.search_curves import after, ahead, best_us, by_task, svg, table, within
from benchmarks.search_kernels import Graph, Point, Search, Spent
from benchmarks.search_walks import BY_CHANCE, DEFAULT, WALKS, Walk
from infra.journal import JournalError, replace_file
from infra.tasks.seed_index import TaskNotFound, load_seed, seed_index
from nki_sim import ties

BEGIN, END = "<!-- suite: begin -->", "<!-- suite: end -->"
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "search.svg"
SHOWN = (1, 2, 3, 5, 10, 24)
SHOWN_S = (2, 5, 10, 20, 50, 100, 200)
LONGEST_S = 200.0
A_RUN = 10
"""Evaluations of a run of as many rounds as there are by default."""
LOOKED_AT = 300
"""Kernels whose changes one run may list."""
TIE = 1e-3
"""Means that differ by less are called equal."""


def replayed(graph: Graph, walk: Walk, seeds: Sequence[int], most: int, looked_at: int = LOOKED_AT) -> list[Search]:
    """A run for each seed; for a walk that leaves nothing to chance the one there is."""
    runs = []
    for seed in seeds if walk in BY_CHANCE else seeds[:1]:
        run = Search(graph, most, looked_at)
        try:
            walk(run, random.Random(seed))
        except Spent:
            pass
        runs.append(run)
    return runs


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, required=True, help="where answers are kept")
    options.add_argument("--tasks", metavar="NAME,...", help="only these")
    options.add_argument("--seeds", type=int, default=5, metavar="N", help="runs of each strategy on each task [5]")
    options.add_argument("--most", type=int, default=24, metavar="N", help="evaluations of a run [24]")
    options.add_argument("--write", type=Path, metavar="FILE.md", help="renew the page, and its picture")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    names = options.tasks.split(",") if options.tasks else [seed.name for seed in seed_index()]
    curves: dict[str, dict[str, list[list[Point]]]] = {}
    shapes, faults, priced = {}, [], {name: 0 for name in WALKS}
    try:
        for name in names:
            graph = CatalogueGraph(load_seed(name), options.folder)
            shapes[name] = graph.shape.describe()
            runs = {what: replayed(graph, walk, range(options.seeds), options.most) for what, walk in WALKS.items()}
            curves[name] = {what: [run.points for run in some] for what, some in runs.items()}
            for what, some in runs.items():
                priced[what] += sum(run.priced for run in some) // len(some)
            fastest = best_us(curves[name])
            best = next(run.best for some in runs.values() for run in some if run.points[-1].us == fastest)
            judged = graph.judged(best)
            if not isinstance(judged, Measured):
                faults.append(f"{name}: the fastest kernel is not right to the judge of a run: {explain(judged)}")
            faults += [f"{name}: a change of the catalogue is wrong: {why}" for why in graph.wrong().values()]
            graph.close()
            print(
                f"{name} at {shapes[name]}: {graph.looked_at} kernels looked at, {graph.known} priced, "
                f"best {fastest:,.1f} µs; {_processor_s():,.0f} s so far",
                file=sys.stderr,
                flush=True,
            )
    except (JournalError, TaskNotFound) as error:
        print(f"search_suite: {error}", file=sys.stderr)
        return 2
    lines = report(curves, shapes, options.most, priced)
    print("\n".join(lines))
    if options.write is not None:
        search.write(options.write, lines, BEGIN, END)
        replace_file(PICTURE, svg(curves, options.most, LONGEST_S))
    for fault in faults:
        print(fault)
    for at in SHOWN:
        for name, by in ahead(curves, DEFAULT, at, TIE).items() if at <= options.most else ():
            print(f"evaluations: {at}; {name} is {100 * by:.1f} % above {DEFAULT}")
    better = ahead(curves, DEFAULT, min(A_RUN, options.most), ties.shipped().within)
    if better:
        print(f"BEHIND: {DEFAULT} is the default, and after a run {', '.join(better)} is above it by more than a tie")
    return int(bool(better))


def report(
    curves: dict[str, dict[str, list[list[Point]]]], shapes: dict[str, str], most: int, priced: dict[str, int]
) -> list[str]:
    """Lines of Markdown."""
    counts = [at for at in SHOWN if at <= most]
    regrets = {
        (task, name): search.Runs(tuple(tuple(point.us / best_us(of) - 1 for point in curve) for curve in runs))
        for task, of in curves.items()
        for name, runs in of.items()
    }
    each = ", ".join(f"{name} {count / len(curves):,.0f}" for name, count in priced.items())
    others = [seed.name for seed in seed_index() if seed.name not in curves]
    left_out = [f"Not replayed: {', '.join(others)}.", ""] if others else []
    return [
        *table(curves, "speed-up after so many evaluations", counts, after), "",
        *table(curves, "and within so many seconds", SHOWN_S, within), "",
        f"How much slower than the best known kernel, in %, after {min(A_RUN, most)} evaluations:", "",
        *by_task(curves, shapes, min(A_RUN, most)), "",
        f"Kernels priced on a task, in the mean: {each}.", "",
        *left_out,
        "```", *search.picture(regrets, most), "```",
    ]  # fmt: skip


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
