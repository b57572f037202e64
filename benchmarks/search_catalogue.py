"""The graph of kernels that the catalogue makes of one task, grown as it is asked about and kept in a file.

A kernel's changes are all sites of all transforms; its price is the simulator's at one of the task's shapes; whether it
is right is the judge's word at the smallest shape, on the reference's own inputs of one seed. Kernels are the shipped
seeds and what the catalogue makes of them, so they are traced in this process; seconds are of its processor time.
"""

from __future__ import annotations

import hashlib
import linecache
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import nki_sim
from accelopt_core.candidate import Candidate, source_hash
from accelopt_core.catalogue import sweep
from accelopt_core.catalogue.rewrites import legal_rewrites
from accelopt_core.evaluation import (
    Bottleneck,
    Bounds,
    Evaluation,
    Measured,
    Profile,
    Proof,
    Step,
    explain,
)
from accelopt_core.judging.judge import judge
from accelopt_core.judging.verification import Reference, ReferenceCache, argument_specs
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import ALONE, REFERENCE, ShapePreset, Surroundings, Task
from accelopt_core.toolchain import (
    ArgumentSpec,
    CandidateFault,
    CompileError,
    DtypeArgument,
    StepTimeout,
    TensorArgument,
)
from accelopt_core.transforms.base import AnalysisContext, NotAKernel, parse_kernel
from accelopt_core.transforms.registry import STEPS
from benchmarks.search_kernels import Asked, Change, Timed
from infra.isolation.deadline import within
from infra.journal import JournalError, JsonLines
from infra.judging.shipment import TREE
from infra.simulator.toolchain import Simulated, SimulatorToolchain, simulator_fingerprint
from infra.tasks.seed_index import Seed
from nki_sim.dtypes import as_dtype
from nki_sim.errors import NkiError
from nki_sim.session import TensorSpec

MACHINE = "trn2"
MOST_INSTRUCTIONS = 6_000
"""Of the input kernel, at the shape whose price guides the search: the largest with no more, else the smallest."""
LONGEST_S = 60.0
"""To trace a kernel."""

T = TypeVar("T")


class OfAnotherVersion(JournalError):
    """The file was made with other transforms, another simulator or another task: give another folder."""


class TracedHere(SimulatorToolchain):
    """Traces in this process: for kernels that the repository ships, and what the catalogue makes of them."""

    proves = True

    def compile(
        self, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings = ALONE
    ) -> Simulated:
        nki_sim.install()
        file = f"<kernel {source_hash(source)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        space: dict[str, Any] = {}
        try:
            with within(LONGEST_S, lambda: StepTimeout(Step.COMPILE, LONGEST_S)):
                exec(compile(source, file, "exec"), space)
                kernel = next(space[name] for name in around.entry_points if name in space)
                given = [_given(each) for each in arguments]
                return Simulated(nki_sim.trace(kernel, *given, machine=self.model.name), self.model)
        except CandidateFault:
            raise
        except NkiError as error:
            raise CompileError(str(error), error.line) from None
        except Exception as error:  # as in the process that traces candidates: a kernel may raise anything
            raise CompileError(f"{type(error).__name__}: {error}") from None
        finally:
            del linecache.cache[file]

    def prove(self, *given: Any, **named: Any) -> tuple[Proof, ...]:
        """Nothing where `proves` is unset: most of a judge's time."""
        return super().prove(*given, **named) if self.proves else ()


class CatalogueGraph:
    """See `benchmarks.search_kernels.Graph`. One process at a time may ask it; what it was asked before it knows."""

    foreseeable = True

    def __init__(self, seed: Seed, folder: Path) -> None:
        """Raises OfAnotherVersion, and JournalError for a damaged file."""
        self._task = seed.task()
        self._source = seed.kernel_source
        self.start = source_hash(self._source)
        self._toolchain = TracedHere(MACHINE)
        folder.mkdir(parents=True, exist_ok=True)
        self._cache = ReferenceCache(folder / "references", key=b"a benchmark's own")
        (folder / "references").mkdir(exist_ok=True)
        self._file = JsonLines(folder / f"{seed.name}.jsonl")
        self._sources = {self.start: self._source}
        self._steps: dict[str, Asked[tuple[Change, ...]]] = {}
        self._settings: dict[str, Asked[tuple[str, ...]]] = {}
        self._prices: dict[str, Asked[float | None]] = {}
        self._bottlenecks: dict[str, Bottleneck] = {}
        self._right: dict[str, Asked[str]] = {}
        self._head: dict[str, Any] = {}
        for record in self._file.read():
            self._recall(record)
        if not self._head:
            self._head = {"made": _version(self._task), "shape": self._shape().name, "judging_s": self._judging_s()}
            self._file.append({"head": self._head})
        if self._head["made"] != _version(self._task):
            raise OfAnotherVersion(f"{self._file.path} was made by another version: give another --folder")

    @property
    def shape(self) -> ShapePreset:
        """At which kernels are priced."""
        return next(each for each in self._task.presets if each.name == self._head["shape"])

    @property
    def judging_s(self) -> float:
        """What the judge of a run takes for the input kernel at the smallest shape: all seeds, all kinds of inputs and
        the proofs."""
        return float(self._head["judging_s"])

    @property
    def looked_at(self) -> int:
        """Kernels whose changes are known."""
        return len(self._steps)

    @property
    def known(self) -> int:
        """Kernels that have a price."""
        return len(self._prices)

    def close(self) -> None:
        self._toolchain.close()

    def steps(self, kernel: str) -> Asked[tuple[Change, ...]]:
        if kernel not in self._steps:
            found, seconds = _taking(lambda: self._changes(kernel))
            record = [[step.technique, step.site, step.child, self._new(step.child, text)] for step, text in found]
            self._keep({"kernel": kernel, "steps": record, "seconds": seconds})
        return self._steps[kernel]

    def settings(self, kernel: str) -> Asked[tuple[str, ...]]:
        if kernel not in self._settings:
            made, seconds = _taking(lambda: sweep.settings_of(self._sources[kernel], self._task.around, sweep.MOST))
            named = [(source_hash(each.source), each.source) for each in made if each.values]
            record = [[child, self._new(child, text)] for child, text in named]
            self._keep({"kernel": kernel, "settings": record, "seconds": seconds})
        return self._settings[kernel]

    def price_us(self, kernel: str) -> Asked[float | None]:
        if kernel not in self._prices:
            (us, bottleneck), seconds = _taking(lambda: self._priced(self._sources[kernel]))
            self._keep({"kernel": kernel, "us": us, "bottleneck": bottleneck, "seconds": seconds})
        return self._prices[kernel]

    def timed(self, kernel: str) -> Asked[Timed | None]:
        """An evaluation takes what the judge of a run takes, whoever is judged, and a price."""
        us, pricing_s = self.price_us(kernel)
        if kernel not in self._right:
            why, seconds = _taking(lambda: self._fault(self._sources[kernel])) if us is not None else ("no price", 0.0)
            self._keep({"kernel": kernel, "wrong": why, "seconds": seconds})
        right = us is not None and not self._right[kernel].answer
        timed = Timed(us, self._bottlenecks[kernel]) if right and us is not None else None
        return Asked(timed, self.judging_s + pricing_s)

    def wrong(self) -> dict[str, str]:
        """Of the kernels that were evaluated and have a price those that are wrong, and why."""
        return {
            kernel: why for kernel, (why, _) in self._right.items() if why and self._prices[kernel].answer is not None
        }

    def judged(self, kernel: str) -> Evaluation:
        """As a run judges it, at the smallest shape: every seed, every kind of inputs, and proofs."""
        return self._judged(self._sources[kernel], replace(self._task, presets=self._task.presets[:1]), proves=True)

    def _changes(self, kernel: str) -> list[tuple[Change, str]]:
        known = AnalysisContext(arguments=tuple(self._specs.values()))
        around = self._task.around
        try:
            made = legal_rewrites(parse_kernel(self._sources[kernel], around.entry_points, around), known, STEPS)
        except NotAKernel:  # no transform leads to such; none goes on from there
            return []
        steps = [(Change(each.site.transform, each.site.key, each.content_hash), each.source) for each in made]
        return [(step, text) for step, text in steps if step.child != kernel]

    def _priced(self, source: str) -> tuple[float | None, str]:
        try:
            for preset in dict.fromkeys((self._task.presets[0], self.shape)):
                artifact = self._toolchain.compile(source, self._specs[preset.name], LONGEST_S, self._task.around)
            us = self._toolchain.estimate_us(artifact)
        except CandidateFault:
            return None, ""
        if us is None:
            return None, ""
        limits = Profile(dict(artifact.measurement.fields), Bounds(0.0, 0.0, 0.0, "trace"))
        return us, limits.bottleneck(us).value

    def _fault(self, source: str) -> str:
        """Why it is wrong; empty where it is right."""
        found = self._judged(source, self._small_task, proves=False)
        return "" if isinstance(found, Measured) else explain(found)

    def _judged(self, source: str, task: Task, proves: bool) -> Evaluation:
        self._toolchain.proves = proves
        original = Candidate("input", self._source)
        request = EvaluationRequest(task, Candidate("kernel", source, "input"), original=original, by_tool=True)
        with np.errstate(all="ignore"):
            return judge(request, self._toolchain, lambda step, detail: None, self._cache)

    def _shape(self) -> ShapePreset:
        for preset in reversed(self._task.presets[1:]):
            program = self._toolchain.compile(self._source, self._specs[preset.name], LONGEST_S).program
            if len(program) <= MOST_INSTRUCTIONS:
                return preset
        return self._task.presets[0]

    def _judging_s(self) -> float:
        """The second time: what is computed of the reference once in a run is there then."""
        whole = replace(self._task, presets=self._task.presets[:1])
        return [_taking(lambda: self._judged(self._source, whole, proves=True))[1] for _ in range(2)][1]

    @cached_property
    def _small_task(self) -> Task:
        """One draw of the reference's own inputs at the smallest shape."""
        others = tuple((name, "a change that is legal") for name in replace(self._task, left_out=()).distributions)
        return replace(
            self._task, presets=self._task.presets[:1], seeds=self._task.seeds[:1],
            left_out=tuple(each for each in others if each[0] != REFERENCE),
        )  # fmt: skip

    @cached_property
    def _specs(self) -> dict[str, tuple[ArgumentSpec, ...]]:
        """By name of the shape."""
        seed, found = self._task.seeds[0], {}
        for preset in self._task.presets:
            reference = Reference(self._task, preset)
            found[preset.name] = argument_specs(reference.kernel_arguments(reference.inputs(seed)))
        return found

    def _new(self, child: str, text: str) -> str | None:
        """The text, where it is not in the file yet."""
        if child in self._sources:
            return None
        self._sources[child] = text
        return text

    def _keep(self, record: dict[str, Any]) -> None:
        self._file.append(record)
        self._recall(record)

    def _recall(self, record: dict[str, Any]) -> None:
        if "head" in record:
            self._head = record["head"]
            return
        kernel, seconds = record["kernel"], float(record["seconds"])
        if "steps" in record:
            self._sources.update({child: text for *_, child, text in record["steps"] if text is not None})
            steps = tuple(Change(technique, site, child) for technique, site, child, _ in record["steps"])
            self._steps[kernel] = Asked(steps, seconds)
        elif "settings" in record:
            self._sources.update({child: text for child, text in record["settings"] if text is not None})
            self._settings[kernel] = Asked(tuple(child for child, _ in record["settings"]), seconds)
        elif "us" in record:
            self._prices[kernel] = Asked(record["us"], seconds)
            if record["us"] is not None:
                self._bottlenecks[kernel] = Bottleneck(record["bottleneck"])
        else:
            self._right[kernel] = Asked(record["wrong"], seconds)


def _given(argument: ArgumentSpec) -> object:
    """To the tracer."""
    if isinstance(argument, TensorArgument):
        return TensorSpec(argument.shape, as_dtype(argument.dtype))
    return as_dtype(argument.element_type) if isinstance(argument, DtypeArgument) else argument.value


def _taking(work: Callable[[], T]) -> Asked[T]:
    began = time.process_time()
    done = work()
    return Asked(done, time.process_time() - began)


def _version(task: Task) -> str:
    """Of all that an answer depends on."""
    digest = hashlib.sha256(f"{simulator_fingerprint(MACHINE, None)} {task.content_hash}".encode())
    for path in sorted((TREE / "accelopt_core" / "transforms").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
