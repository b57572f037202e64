"""From the kernels that were tuned for one shape each to one kernel for all of them: chosen, written, verified, timed.

Every kernel is priced at every shape. Of those that serve a shape as well as can be told the fewest are kept
(`accelopt_core.dispatch.covering`) and written into one file, which the judge then verifies and times at every shape,
as it does a run's winner, beside the input kernel. A variant that fails there, or is slower than the input kernel, is
never tried again at that shape, and the choice is made anew. At shapes beside these the file must be the input kernel's
program.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from accelopt_core.candidate import Candidate, source_hash
from accelopt_core.dispatch.covering import chosen, shapes_between
from accelopt_core.dispatch.joining import Branch, Variant, joined
from accelopt_core.dispatch.kernel_file import CannotJoin
from accelopt_core.dispatch.weights import ShapeSet, WeightedShape
from accelopt_core.evaluation import Evaluation, Measured, explain, microseconds
from accelopt_core.ports import EvaluationLimits, EvaluationRequest, Progress, Target, TaskFault
from accelopt_core.task import ShapePreset, Task
from accelopt_core.toolchain import ArgumentSpec
from infra.prediction.predictor import Predictor
from infra.runs.shape_set import BetweenRow, SetRow, SetTable
from infra.tasks.shapes_file import at_shape

INPUT = "the input kernel"
MOST_BETWEEN = 64
"""Shapes beside those of the set that are looked at; the input kernel does not compile at all of them ..."""
LEAST_BETWEEN = 3
"""... and so many, or as many as the set has, are verified."""


@dataclass(frozen=True)
class Tuned:
    """What a run for one shape came to."""

    baseline: Measured
    source: str
    """The fastest kernel that is right; the input kernel where nothing was faster."""
    best: Measured

    @property
    def input_us(self) -> float:
        """Beside the best, where that was timed so."""
        incumbent = self.best.incumbent
        return incumbent.latency_us if incumbent is not None else self.baseline.latency_us


@dataclass(frozen=True)
class JoinedKernel:
    source: str
    table: SetTable


@dataclass(frozen=True)
class Joining:
    """What a kernel is joined from, and where it is tried."""

    task: Task
    """At whatever shape: the constants that a shape does not name are its own."""
    shapes: ShapeSet
    given: str
    """The input kernel."""
    tuned: Mapping[str, Tuned]
    """By shape, of all whose run has a result."""
    arguments: Mapping[str, tuple[ArgumentSpec, ...]]
    """Of the kernel, by shape."""
    target: Target
    predictor: Callable[[Task], Predictor]
    """A new one; whoever asked for it closes it."""
    limits: EvaluationLimits
    secret_seeds: int
    """Drawn afresh for every evaluation."""
    within: float
    """Of the slower of two latencies: from this difference on their order is believed."""
    progress: Progress
    told: Callable[[str], object]
    """Hears each result in a line."""

    def kernel(self) -> JoinedKernel:
        """Raises TargetError, TaskFault and JournalError."""
        variants, notes = self._variants()
        prices = self._prices(variants)
        while True:
            choice = chosen(prices, self._calls, INPUT, self.within)
            source = self._written(variants, choice)
            if source == self.given:
                return JoinedKernel(source, self._table(choice, {}, (), notes))
            verdicts: dict[str, Measured] = {}
            refused = self._verify(source, variants, choice, verdicts)
            if refused is None:
                break
            shape, why = refused
            if choice[shape] == INPUT:
                return self._none(notes, f"at {shape}: {why}")
            notes.append(f"the kernel of {choice[shape]} is not used at {shape}: {why}")
            self.told(notes[-1])
            del prices[shape][choice[shape]]
        try:
            between = tuple(self._between(source))
        except _Differs as error:
            return self._none(notes, str(error))
        return JoinedKernel(source, self._table(choice, verdicts, between, notes))

    def _none(self, notes: list[str], why: str) -> JoinedKernel:
        """What nobody may use, although each part of it was right."""
        self.told(f"there is no joined kernel: {why}")
        choice = dict.fromkeys(self.tuned, INPUT)
        return JoinedKernel(self.given, self._table(choice, {}, (), [*notes, f"there is no joined kernel: {why}"]))

    # --- choosing ---

    @property
    def _calls(self) -> dict[str, float]:
        return self.shapes.calls({name: tuned.input_us for name, tuned in self.tuned.items()})

    def _variants(self) -> tuple[dict[str, str], list[str]]:
        """By the shape whose run came to it first; and what is to be said of those that cannot be joined."""
        found: dict[str, str] = {}
        known = {source_hash(self.given)}
        notes = []
        for name, tuned in self.tuned.items():
            if source_hash(tuned.source) in known:
                continue
            known.add(source_hash(tuned.source))
            try:
                branch = Branch(name, self.arguments[name])
                joined(self.given, [Variant(tuned.source, (branch,))], self.task.around.entry_points)
            except CannotJoin as error:
                notes.append(f"the kernel of {name} cannot be joined to the others: {error}")
                continue
            found[name] = tuned.source
        return found, notes

    def _prices(self, variants: Mapping[str, str]) -> dict[str, dict[str, float]]:
        """µs by shape and variant. On a simulated machine those of its own run are of that run."""
        sources = {INPUT: self.given, **variants}
        prices: dict[str, dict[str, float]] = {}
        for shape in self.shapes.shapes if variants else ():
            tuned = self.tuned.get(shape.name)
            if tuned is None:
                continue
            self.told(f"{shape.name}: pricing {len(sources)} kernels")
            with closing(self.predictor(self._only(shape.preset))) as predictor:
                predicted = predictor(list(sources.values()))
            at = {name: us for name, source in sources.items() if (us := predicted[source]) is not None}
            measured = {INPUT: tuned.baseline.latency_us}
            if (
                own := next((n for n, s in variants.items() if source_hash(s) == source_hash(tuned.source)), None)
            ) is not None:
                measured[own] = tuned.best.latency_us
            if tuned.best.simulated:
                prices[shape.name] = {**at, **measured}
            else:  # the simulator orders kernels, and does not say what a device takes: the two are not mixed
                prices[shape.name] = at if measured.keys() <= at.keys() else measured
        return prices or {name: {INPUT: tuned.baseline.latency_us} for name, tuned in self.tuned.items()}

    def _written(self, variants: Mapping[str, str], choice: Mapping[str, str]) -> str:
        presets = {shape.name: shape.preset for shape in self.shapes.shapes}
        parts = []
        for name in _kept(choice):
            served = [shape for shape, variant in choice.items() if variant == name]
            branches = tuple(Branch(presets[shape].describe(), self.arguments[shape]) for shape in served)
            parts.append(Variant(variants[name], branches))
        return joined(self.given, parts, self.task.around.entry_points)

    # --- verifying ---

    def _verify(
        self, source: str, variants: Mapping[str, str], choice: Mapping[str, str], verdicts: dict[str, Measured]
    ) -> tuple[str, str] | None:
        """The first shape at which the joined kernel may not be used, and why: None where there is none. `verdicts`:
        filled by shape. Those come first whose own run has not seen the kernel that they take: only what these come to
        is in doubt."""
        there = [shape for shape in self.shapes.shapes if shape.name in choice]
        for shape in sorted(
            there, key=lambda shape: self._was_verified(shape, variants.get(choice[shape.name], self.given))
        ):
            took = choice[shape.name]
            result, fault = self._at(shape, source, variants.get(took, self.given))
            if fault:
                return shape.name, fault
            assert isinstance(result, Measured)
            verdicts[shape.name] = result
            self.told(f"{shape.name}: the joined kernel is verified, {result.label}{microseconds(result.latency_us)}")
        return None

    def _at(self, shape: WeightedShape, source: str, takes: str) -> tuple[Evaluation | None, str]:
        """Verified and timed, and what is wrong with it there. `takes`: the kernel that it is to be there.

        What the joined kernel does at a gate is another of its kernels, and says nothing of this one. So it is verified
        at this shape alone, with everything; but where it is the program that the shape's own run has verified so, or
        the input kernel's, as a winner is.
        """
        if not self.tuned[shape.name].best.simulated:
            result = self._judged(source, self._only(shape.preset), final=True)
            return result, self._fault(result)
        with closing(self.predictor(self._only(shape.preset))) as predictor:
            programs = predictor.programs([source, takes])
        if programs[source] != programs[takes]:
            return None, "the joined kernel is another program there"
        task = at_shape(self.task, shape) if self._was_verified(shape, takes) else self._only(shape.preset)
        result = self._judged(source, task, final=True)
        return result, self._fault(result)

    def _was_verified(self, shape: WeightedShape, source: str) -> bool:
        """By the shape's own run, as its winner or as its input kernel."""
        tuned = self.tuned[shape.name]
        won = source_hash(source) == source_hash(tuned.source) and tuned.best.incumbent is not None
        return won or source_hash(source) == source_hash(self.given)

    def _fault(self, result: Evaluation) -> str:
        """Empty where there is none."""
        if not isinstance(result, Measured):
            return explain(result)
        beside = result.incumbent
        if beside is not None and result.latency_us > (1 + beside.noise) * beside.latency_us:
            return f"{microseconds(result.latency_us)}, and the input kernel {microseconds(beside.latency_us)}"
        return ""

    def _judged(self, source: str, task: Task, *, final: bool) -> Evaluation:
        """As a run's winner is, beside the input kernel; or as any candidate."""
        original = Candidate("input", self.given)
        seeds = tuple(secrets.randbelow(1 << 31) for _ in range(self.secret_seeds))
        cores = next(iter(self.tuned.values())).baseline.cores
        request = EvaluationRequest(
            task, Candidate("joined", source, "input"), self.limits, extra_seeds=seeds, final=final,
            incumbent=original if final else None, original=original, cores=cores,
        )  # fmt: skip
        return self.target.evaluate(request, self.progress)

    def _between(self, source: str) -> Iterator[BetweenRow]:
        """At shapes beside those of the set: the input kernel's very program, or refused as that is.

        Raises _Differs, TargetError and JournalError.
        """
        verified = 0
        for preset in shapes_between(self.shapes.shapes)[:MOST_BETWEEN]:
            if verified >= max(LEAST_BETWEEN, len(self.tuned)):
                return
            with closing(self.predictor(self._only(preset))) as predictor:
                try:
                    programs = predictor.programs([source, self.given])
                except TaskFault:  # the reference is not made for it
                    continue
            if programs[source] != programs[self.given]:
                raise _Differs(f"at {preset.describe()}, which nobody verified, it is not the input kernel's program")
            if not programs[source]:
                yield BetweenRow(preset.describe(), "refused, as by the input kernel")
                continue
            result = self._judged(source, at_shape(self.task, WeightedShape(preset)), final=False)
            if not isinstance(result, Measured):
                raise _Differs(f"at {preset.describe()}, which takes the input kernel: {explain(result)}")
            verified += 1
            self.told(f"{preset.describe()}, which is not of the set: takes the input kernel, verified")
            yield BetweenRow(preset.describe(), "the input kernel's program, verified")

    def _only(self, preset: ShapePreset) -> Task:
        return replace(self.task, presets=(preset,))

    # --- what it came to ---

    def _table(
        self,
        choice: Mapping[str, str],
        verdicts: Mapping[str, Measured],
        between: tuple[BetweenRow, ...],
        notes: Sequence[str],
    ) -> SetTable:
        """`verdicts`: none where the input kernel stays as it is."""
        numbers = {name: number for number, name in enumerate(_kept(choice), 1)}
        rows = []
        for shape in self.shapes.shapes:
            if shape.name not in choice:
                continue
            tuned = self.tuned[shape.name]
            after = verdicts.get(shape.name)
            beside = after.incumbent.latency_us if after is not None and after.incumbent is not None else None
            shown = after if after is not None else tuned.baseline
            rows.append(
                SetRow(
                    shape.name, shape.preset.describe(), shape.weight, self._calls[shape.name],
                    beside or tuned.input_us, tuned.best.latency_us,
                    after.latency_us if after is not None else tuned.input_us, numbers.get(choice[shape.name], 0),
                    shown.checks, shown.likely,
                )
            )  # fmt: skip
        first = next(iter(self.tuned.values())).baseline
        return SetTable(
            first.machine, first.simulated, first.caveat, self.shapes.counting, tuple(rows), between, {}, tuple(notes)
        )


def _kept(choice: Mapping[str, str]) -> list[str]:
    """The variants beside the input kernel, in the order of the shapes that take them."""
    return [name for name in dict.fromkeys(choice.values()) if name != INPUT]


class _Differs(Exception):
    """The joined kernel is not the input kernel where it has to be. One line."""
