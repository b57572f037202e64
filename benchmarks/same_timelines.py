"""Are the timelines the same bits by Python and by what is compiled? Of every seed, as shipped and as the catalogue
leaves it, at every shape; of the winners of runs; of public kernels.

    python benchmarks/same_timelines.py [--winners CHECKPOINTS] [--smallest] [--only TEXT]
        [--sdk DIR --autocomp DIR --library DIR]

CHECKPOINTS: a folder of a suite's runs (`orchestrator.py --suite nkibench`). The last three are checkouts of
aws-neuron/aws-neuron-sdk, ucb-bar/autocomp and aws-neuron/nki-library. Ends with status 1 where a timeline differs.
"""

from __future__ import annotations

import argparse
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nki_sim
from benchmarks.compatibility import NotTraced, add_checkouts, checkouts, trace_of
from benchmarks.compatibility_cases import CASES
from infra.tasks.seed_index import load_seed, seed_index
from nki_sim import compiled
from nki_sim.dtypes import as_dtype
from nki_sim.errors import NkiError
from nki_sim.joint import schedule_jointly
from nki_sim.machine import TRN2, Machine
from nki_sim.program import Program
from nki_sim.run import iterate
from nki_sim.schedule import Timeline, schedule
from nki_sim.session import TensorSpec
from nki_sim.unroll import unrolled
from tests.mutations.bases import bases

Made = tuple[Timeline, ...]


def different(make: Callable[[], Made]) -> tuple[Made, list[str]]:
    """What Python makes, and what of it is not the same bits when what is compiled makes it. Raises as `make` does."""
    with compiled.using(False):
        expected = make()
    with compiled.using(True):
        found = make()
    if len(found) != len(expected):
        return expected, [f"{len(found)} timelines, not {len(expected)}"]
    return expected, [name for one, other in zip(expected, found) for name in _fields_that_differ(one, other)]


def _fields_that_differ(one: Timeline, other: Timeline) -> Iterator[str]:
    for name in (field.name for field in fields(Timeline)):
        wanted, got = getattr(one, name), getattr(other, name)
        if name in ("program", "shown"):
            for part in ("template_ids", "operand_starts", "operand_data"):
                if getattr(got, part).tobytes() != getattr(wanted, part).tobytes():
                    yield f"{name}.{part}"
            for part in ("templates", "allocations", "edges"):
                if getattr(got, part) != getattr(wanted, part):
                    yield f"{name}.{part}"
        elif isinstance(wanted, np.ndarray):
            if got.dtype != wanted.dtype or got.tobytes() != wanted.tobytes():
                yield name
        elif got != wanted:
            yield name


def timelines(program: Program, machine: Machine = TRN2) -> Made:
    """Of each core; everything is scheduled, nothing extrapolated. Raises NkiError as `schedule`.

    Each time of a copy that nothing is known of yet, so that what one path has found is not there for the other.
    """
    if program.peers:
        return schedule_jointly([unrolled(replace(core, peers=())) for core in iterate(program)], machine)
    return (schedule(replace(program), machine, exact=True),)


def shapes_of(task: str) -> tuple[str, ...]:
    """Names of a seed's presets, smallest first."""
    return tuple(preset.name for preset in load_seed(task).presets)


def traced_at(source: str, task: str, shape: str) -> Program:
    """A kernel of this seed's task, at the shape of that name. Raises whatever the kernel raises."""
    nki_sim.install()
    seed = load_seed(task)
    reference = _module(seed.reference_path.read_text(encoding="utf-8"), "reference")
    (values,) = (preset.values for preset in seed.presets if preset.name == shape)
    for key, value in values:
        setattr(reference, key, value)
    inputs = reference.transform_to_nki_inputs(reference.get_inputs())
    specs = [TensorSpec(i.shape, as_dtype(i.dtype)) if isinstance(i, np.ndarray) else i for i in inputs]
    return nki_sim.trace(_module(source, task).kernel, *specs)


def _module(source: str, name: str) -> Any:
    module = types.ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    return module


def kernels(winners: Path | None) -> Iterator[tuple[str, str, str]]:
    """(name, task, source) of what is shipped, and of the winners in that folder."""
    for base in bases():
        yield base.name, base.task, base.source
    for seed in seed_index() if winners is not None else ():
        assert winners is not None
        for found in sorted(winners.glob(f"*.{seed.name}/best_kernel.py")):
            yield f"{seed.name}, winner of {found.parent.name}", seed.name, found.read_text(encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--winners", type=Path, metavar="CHECKPOINTS", help="the winners in this folder too")
    parser.add_argument("--smallest", action="store_true", help="each seed at its smallest shape only")
    parser.add_argument("--only", default="", metavar="TEXT", help="only those whose name contains this")
    add_checkouts(parser)
    options = parser.parse_args()
    nki_sim.install()
    rows = same = differing = 0

    def compare(name: str, make: Callable[[], Program]) -> None:
        nonlocal rows, same, differing
        if options.only not in name:
            return
        try:
            program = make()
            made, wrong = different(lambda: timelines(program))
        except (NkiError, NotTraced) as why:
            print(f"{name}: no timeline: {str(why).splitlines()[0][:100]}", flush=True)
            return
        rows += sum(len(line.program) for line in made)
        same += not wrong
        differing += bool(wrong)
        print(f"{name}: {'DIFFERENT: ' + ', '.join(wrong) if wrong else 'the same'}", flush=True)

    for name, task, source in kernels(options.winners):
        for shape in shapes_of(task)[: 1 if options.smallest else None]:
            compare(f"{name}, {shape}", lambda: traced_at(source, task, shape))  # noqa: B023  # called at once
    for key, _, root in checkouts(options):
        for case in [case for case in CASES if case.repository == key and not case.rejected]:
            compare(f"{case.file} {case.function}, {case.what}", lambda: trace_of(root, case)[0])  # noqa: B023  # at once
    print(f"{same} timelines of {rows:,} instructions are the same bits by both, {differing} differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
