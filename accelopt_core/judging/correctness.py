"""Whether a compiled kernel computes what the reference does, and if not, why; what the input kernel excuses."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from accelopt_core.evaluation import (
    CheckFailure,
    CompileFailed,
    Crashed,
    Evaluation,
    Furthest,
    Implausible,
    Incorrect,
    Step,
    explain,
)
from accelopt_core.judging.checks import (
    BeyondFloat32,
    CheckResult,
    Compiled,
    Execution,
    Failed,
    Off,
    Passed,
    PlainFloat32,
    Undefined,
    Verified,
    furthest_of,
    in_rows,
    plain_float32,
)
from accelopt_core.judging.inputs.domains import is_floating
from accelopt_core.judging.inputs.draws import OF_DOMAINS, Draw, count, several
from accelopt_core.judging.plausibility import first_changed, one_value, same_bits
from accelopt_core.judging.reference.verification import (
    NOISES,
    BadReference,
    ReferenceCache,
    UnusableOutputs,
    has_finite,
    widened,
)
from accelopt_core.judging.side_by_side import side_by_side
from accelopt_core.judging.tolerance.closeness import (
    ONE_BY_ONE_SLACK,
    Arithmetic,
    Place,
    arithmetic_of,
    check_elements,
    check_output,
    few_rows,
    in_lines,
    lost_by_underflow,
    needed,
    off_elsewhere,
    rows_within_float32,
)
from accelopt_core.judging.tolerance.excuses import EXCUSE_SLACK, excuse
from accelopt_core.judging.tolerance.storage import storage_of
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import REFERENCE
from accelopt_core.toolchain import CandidateFault, RunError, TensorArgument, Toolchain

LARGE = 1 << 24
"""Elements of an output from which on changed inputs, like the reference's own, are compared without noise first.

Noise takes up to four more runs of the reference, and is taken for the rows alone that fail so, if they are few.
Without it single small elements are held to their row, which at the gates they are not; and in `mixed` inputs the rows
that are constant show what becomes of one value."""

_ROUNDED_INTEGERS = (
    "integers beyond 2^24 became float32, which does not hold all of them: split them in two, or keep them on GpSimd, "
    "which computes with 32-bit integers exactly"
)
_FURTHER_OFF = f"further off than {EXCUSE_SLACK} times what the input kernel is off there"


class Wrong(Exception):
    """The candidate failed a check: carries what is wrong with it up to the judge."""

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__()
        self.evaluation = evaluation


@dataclass(frozen=True)
class Excuses:
    """Which draws a kernel may fail: those that the task's input kernel, by the same judge, fails too."""

    input_kernel: Callable[[], Verifier] | None
    """What runs it, compiled once; None: it is this very kernel."""
    own_too: bool = False
    """Also of the reference's own inputs, as long as it is right on another of those."""


@dataclass(frozen=True)
class Verifier:
    """Runs a candidate at one shape and holds its outputs against the reference's."""

    request: EvaluationRequest
    toolchain: Toolchain
    compiled: Compiled
    cache: ReferenceCache
    twin: Any = None
    """The input kernel's artifact, where outputs must equal its in every bit."""
    kept_as: str = ""
    """Under which name what it returns is kept; empty: it is not."""

    def count(self, artifact: Any, draws: Sequence[Draw]) -> None:
        """Run another artifact on the same inputs, where its time depends on that."""
        for draw in draws if self.toolchain.counts(artifact) else ():
            inputs = self.compiled.reference.inputs(draw.seed, draw.distribution)
            self.toolchain.run(artifact, self._tensors(inputs), self.request.limits.run_timeout_s)

    def verify(self, draws: Sequence[Draw], twice: bool = False, excuses: Excuses | None = None) -> Verified:
        """Every draw, as many at a time as the machine can. Raises Wrong at the first, in their order, that fails.

        `twice`: the first draw is executed again, and must give the same bits. What `excuses` has is said, and is no
        fault as far as the input kernel is off in the same elements; rows beyond float32 are held to the input kernel.
        """
        if twice:
            draws = (replace(draws[0], twice=True), *draws[1:])
        worst = rounding = 0.0
        types: tuple[str, ...] = ()
        rounded_integers = False
        furthest: list[Furthest] = []
        left_out: list[str] = []
        undefined: list[str] = []
        failed: list[tuple[Draw, Failed]] = []
        at_once = 0 if self.toolchain.counts(self.compiled.artifact) else self.toolchain.parallel_runs
        held = self.toolchain.memory_bytes(self.compiled.artifact)
        unheld: list[Draw] = []
        self.compiled.reference.keep(several(draws))
        verdicts = side_by_side(self._check, draws, self.compiled.tensor_bytes, at_once, held)
        for draw, verdict in zip(draws, verdicts):
            own = draw.distribution == REFERENCE
            if isinstance(verdict, Failed):
                excusable = verdict.excusable and isinstance(verdict.evaluation, (Incorrect, Crashed))
                if excuses is None or not excusable or (own and not excuses.own_too):
                    raise Wrong(verdict.evaluation)
                failed.append((draw, verdict))
                continue
            unheld += () if isinstance(verdict, Undefined) else verdict.unheld
            if isinstance(verdict, BeyondFloat32):
                left_out.append(draw.distribution)
            elif isinstance(verdict, Undefined):
                undefined.append(draw.distribution)
            elif own:
                worst, rounding = max(worst, verdict.relative_l2), max(rounding, verdict.rounding)
                types, rounded_integers = verdict.types, rounded_integers or verdict.rounded_integers
                furthest += [verdict.furthest] if verdict.furthest is not None else []
        shared: tuple[str, ...] = ()
        if excuses is not None and failed:
            unsaid = [draw for draw, _ in failed]
            if not any(draw.distribution == REFERENCE and draw not in unsaid for draw in draws):
                raise Wrong(failed[0][1].evaluation)  # with nothing left that it was right on
            shared = self._shared(failed, excuses.input_kernel)
        if excuses is not None and excuses.input_kernel is not None:
            for draw in unheld:
                theirs = excuses.input_kernel()._execute(draw)
                if not isinstance(theirs, Failed):
                    self._hold_to(draw, theirs, beyond_float32=True)
        identical = len(draws) if self.twin is not None else 0
        preset = self.compiled.preset
        line = (
            f"{preset.name} ({preset.describe()}): {count(draws)}, "
            f"worst relative L2 {worst:.2g}, within TOLERANCE {self.request.task.tolerance:.2g}"
            + (f" + {rounding:.2g} by its type" if rounding else "")
            + (f"; rows beyond float32, left out: {', '.join(dict.fromkeys(left_out))}" if left_out else "")
            + (f"; left out, since the reference fails on them: {', '.join(undefined)}" if undefined else "")
            + (f"; held to the input kernel, which fails them too: {len(shared)} draws" if shared else "")
            + (f"; {_ROUNDED_INTEGERS}" if rounded_integers else "")
        )
        return Verified(worst, line, shared, furthest_of(furthest), identical, types)

    def _shared(
        self, failed: Sequence[tuple[Draw, Failed]], input_kernel: Callable[[], Verifier] | None
    ) -> tuple[str, ...]:
        """What is left out of these draws. Raises Wrong at the first that the input kernel passes or cannot run."""
        if input_kernel is None:
            return tuple(explain(verdict.evaluation) for _, verdict in failed)
        said = []
        for draw, verdict in failed:
            try:
                other = input_kernel()
                ran = other._execute(draw)
                theirs = ran if isinstance(ran, Failed) else other._compared(ran)
                if not isinstance(theirs, Failed) or not isinstance(theirs.evaluation, (Incorrect, Crashed)):
                    raise Wrong(verdict.evaluation)
                if not isinstance(ran, Failed):
                    if any(each.shape != want.shape for each, want in zip(ran.outputs, ran.expected)):
                        raise Wrong(verdict.evaluation)
                    self._hold_to(draw, ran)
            except CandidateFault:
                raise Wrong(verdict.evaluation) from None
            mine, others = explain(verdict.evaluation), explain(theirs.evaluation)
            said.append(f"{mine}; the input kernel too" if mine == others else f"{mine}; the input kernel: {others}")
        return tuple(said)

    def _hold_to(self, draw: Draw, theirs: Execution, beyond_float32: bool = False) -> None:
        """Raises Wrong where this kernel is further off than the input kernel allows, element by element.

        `beyond_float32`: only rows in which the reference overflows in float32 are looked at.
        """
        mine = self._execute(draw)
        if isinstance(mine, Failed):
            raise Wrong(mine.evaluation)
        *_, noise = self._noises(mine)
        plain = self._by_other_roundings(mine, noise, self._by_float32(mine, noise))
        held, allowed = zip(*map(excuse, theirs.outputs, theirs.expected, noise))
        if plain.allowance:  # the input kernel may be as wrong as the reference, and this one right
            allowed = tuple(each + own for each, own in zip(allowed, plain.allowance))
        if beyond_float32:
            allowed = tuple(np.where(rows, np.inf, each) for rows, each in zip(plain.rows, allowed))
        compared = self._compare(replace(mine, expected=held), noise, replace(plain, allowance=allowed))
        if not isinstance(compared, Passed):
            where = " where the reference overflows in float32" if beyond_float32 else ""
            reason = f"{compared.failure.reason}{where}, {_FURTHER_OFF}"
            raise Wrong(Incorrect(replace(compared.failure, reason=reason)))

    def _check(self, draw: Draw) -> CheckResult:
        """One execution, compared as cheaply as decides it."""
        reference = self.compiled.reference
        found = [each for each in reference.movements if each is not None and each.moves]
        try:
            execution = self._execute(draw)
        except BadReference as error:
            if draw.distribution not in OF_DOMAINS or all(each.declared for each in found):
                raise
            return Undefined(str(error))
        return execution if isinstance(execution, Failed) else self._compared(execution)

    def _compared(self, execution: Execution) -> CheckResult:
        """Its outputs with the reference's, and by the suite's own rule, where the task has one."""
        draw = execution.draw
        result = self._by_noise(execution)
        suites = self.request.task.within
        if suites is None or draw.distribution != REFERENCE or not isinstance(result, Passed):
            return result
        furthest: list[Furthest] = []
        for number, (got, want) in enumerate(zip(execution.outputs, execution.expected)):
            place = Place(draw.seed, self.compiled.preset.name, number, draw.distribution)
            off, failure = check_elements(got, want, place=place, within=suites)
            if failure is not None:
                return Failed(Incorrect(failure), excusable=False)
            furthest.append(off)
        return replace(result, furthest=furthest_of(furthest))

    def _by_noise(self, execution: Execution) -> CheckResult:
        draw = execution.draw
        own = draw.distribution == REFERENCE
        if own:
            compared = self._compare(execution, None)
            if isinstance(compared, Passed):
                return compared
            if compared.distance > self.request.task.tolerance:
                return self._failed(execution, compared)
        elif max((e.size for e in execution.expected), default=0) >= LARGE:
            decided = self._by_rows(execution)
            if decided is not None:
                return decided
        plain = self._known_float32(execution)
        with closing(self._noises(execution)) as noises:
            for noise in noises:
                if plain is not None:
                    continue  # the widest limits are known, and decide
                compared = self._compare(execution, noise, quick=True)
                if isinstance(compared, Passed):
                    return compared
        plain = plain or self._by_float32(execution, noise)
        within, noise_within = execution, noise
        if not own and not plain.is_whole:
            within, noise_within = plain.of(execution), tuple(map(in_rows, plain.rows, noise))
        compared = self._compare(within, noise_within, plain, quick=True)
        if not isinstance(compared, Passed):
            plain = self._by_other_roundings(execution, noise, plain)
            compared = self._compare(within, noise_within, plain)
        if not isinstance(compared, Passed):
            return self._failed(execution, compared, plain)
        if within is execution:
            return compared
        unheld = (
            ()
            if isinstance(self._compare(execution, noise, plain, quick=True), Passed)
            else (replace(draw, twice=False),)
        )
        if not draw.otherwise:
            return BeyondFloat32(unheld)
        other = self._check(Draw(draw.seed, draw.otherwise[0], draw.otherwise[1:]))
        return replace(other, unheld=unheld + other.unheld) if isinstance(other, (Passed, BeyondFloat32)) else other

    def _by_rows(self, execution: Execution) -> Passed | Failed | None:
        """Without noise, but for the few rows that are off so. None: that does not decide it.

        Its arrays are given back meanwhile, so that the reference's next run uses their memory: clearing fresh pages
        takes three times as long as a product. What is not right so is executed again.
        """
        draw, arithmetic, stored = execution.draw, self._arithmetic, execution.stored
        few = [  # a zip with a name would hold its last arrays
            few_rows(got, want, arithmetic, to) for got, want, to in zip(execution.outputs, execution.expected, stored)
        ]
        known = [each for each in few if each is not None]
        if len(known) < len(few):
            return None
        passed = Passed(max(each.relative_l2 for each in known))
        rows = [each.numbers for each in known]
        if not any(each.size for each in rows):
            return passed
        outputs, expected = (
            tuple(in_lines(array)[numbers] for array, numbers in zip(arrays, rows))
            for arrays in (execution.outputs, execution.expected)
        )
        execution.expected, execution.raw, execution.outputs = (), [], []
        noise: tuple[np.ndarray, ...] | None = None
        for drawn in range(NOISES):
            noise = self.compiled.reference.more_noise(
                noise, drawn, execution.inputs, expected, arithmetic.unit, draw.seed, rows
            )
            held = zip(known, outputs, expected, noise, stored)
            if all(each.are_right(got, want, off, arithmetic, to) for each, got, want, off, to in held):
                return passed
        again = self._execute(replace(draw, twice=False))
        if isinstance(again, Failed):
            return again
        execution.expected, execution.raw, execution.outputs = again.expected, again.raw, again.outputs
        return None

    def _failed(self, execution: Execution, off: Off, plain: PlainFloat32 | None = None) -> Failed:
        own = execution.draw.distribution == REFERENCE
        failure = off.failure
        if plain is not None and plain.unknown:
            failure = replace(failure, reason=f"{failure.reason}, but {plain.unknown}")
        if self.toolchain.rounded_integers(self.compiled.artifact):
            failure = replace(failure, reason=f"{failure.reason}, and {_ROUNDED_INTEGERS}")
        if execution.draw.distribution in OF_DOMAINS:
            failure = replace(failure, reason=f"{failure.reason} where {self._moved()}; DOMAINS says otherwise")
        return Failed((self._made_up(execution, failure.output) if own else None) or Incorrect(failure))

    def _moved(self) -> str:
        """Which inputs are moved in draws from domains, and how."""
        reference = self.compiled.reference
        named = zip((*reference.parameters, *[""] * len(reference.movements)), reference.movements)
        said = [f"input {name} {each.describe()}" for name, each in named if each is not None and each.moves]
        return ", ".join(said)

    @property
    def _arithmetic(self) -> Arithmetic:
        return arithmetic_of(self.request.task, self.toolchain.simulated)

    def _noises(self, execution: Execution) -> Generator[tuple[np.ndarray, ...], None, None]:
        """From below, the last one whole: each takes a run of the reference, and mostly the first one decides.

        Begins with the one that another candidate's check came to.
        """
        reference, draw, unit = self.compiled.reference, execution.draw, self._arithmetic.unit
        name = f"{draw.distribution}/noise/{unit:g}"
        known = self.cache.known(reference, draw.seed, name)
        noise: tuple[np.ndarray, ...] | None = None
        drawn, seconds = 0, 0.0
        if known is not None:
            drawn, noise = int(known[0]), known[1:]
            yield noise
        kept = drawn
        try:
            while drawn < NOISES:
                began = time.thread_time()
                noise = reference.more_noise(noise, drawn, execution.inputs, execution.expected, unit, draw.seed)
                seconds += time.thread_time() - began
                drawn += 1
                yield noise
        finally:
            if noise is not None and drawn > kept:
                self.cache.keep(reference, draw.seed, name, (np.array(drawn), *noise), seconds)

    def _execute(self, draw: Draw) -> Execution | Failed:
        """Runs reference and kernel; Failed where the outputs cannot even be set beside the reference's."""
        reference = self.compiled.reference
        inputs = reference.inputs(draw.seed, draw.distribution)
        try:
            raw = self._run_on(draw, inputs)
        except RunError as error:
            if draw.distribution not in OF_DOMAINS:
                raise
            return Failed(Crashed(Step.RUN, f"{error}, where {self._moved()}; DOMAINS says otherwise (docs/tasks.md)"))
        if draw.twice and (other := first_changed(raw, self._run(self._tensors(inputs)))) is not None:
            reason = "two executions on the same inputs give different bits"
            return Failed(Incorrect(CheckFailure(draw.seed, self.compiled.preset.name, other, reason)))
        types = tuple(each.dtype.name for each in raw)
        if self.request.output_types not in (None, types):
            wanted = ", ".join(self.request.output_types or ())
            reason = f"it returns {', '.join(types)}, and the input kernel {wanted}: keep the outputs' types"
            failure = CheckFailure(draw.seed, self.compiled.preset.name, 0, reason, distribution=draw.distribution)
            return Failed(Incorrect(failure), excusable=False)
        if self.twin is not None and (failed := self._unlike_its_twin(draw, inputs, raw)) is not None:
            return failed
        expected, given = self._expected(draw, inputs)
        try:
            outputs = reference.outputs(raw, expected)
        except UnusableOutputs as error:
            reason = f"transform_nki_outputs cannot take the outputs: {error}"
            preset = self.compiled.preset.name
            return Failed(Incorrect(CheckFailure(draw.seed, preset, 0, reason, distribution=draw.distribution)))
        if len(outputs) != len(expected):
            return Failed(CompileFailed(f"the kernel returns {len(outputs)} tensors, the reference {len(expected)}"))
        arguments = {spec.dtype for spec in self.compiled.specs if isinstance(spec, TensorArgument)}
        each_output = [(got.dtype.name, e.dtype.name, name) for got, e, name in zip(outputs, expected, given)]
        stored = tuple(storage_of(got, theirs, {*arguments, name}) for got, theirs, name in each_output)
        alike = tuple(storage_of(theirs, theirs, {*arguments, name}) for _, theirs, name in each_output)
        expected, outputs = tuple(map(widened, expected)), list(map(widened, outputs))
        return Execution(draw, inputs, expected, raw, outputs, stored, alike)

    def _unlike_its_twin(self, draw: Draw, inputs: list[Any], raw: list[np.ndarray]) -> Failed | None:
        """Where a bit of the outputs is not the input kernel's."""
        limit_s = self.request.limits.run_timeout_s
        theirs = self.toolchain.run(self.twin, self._tensors(inputs), limit_s)
        other = first_changed(raw, theirs) if len(raw) == len(theirs) else 0
        if other is None:
            return None
        reason = "not bit-identical to the input kernel, as --exact asks: keep the order of its steps"
        failure = CheckFailure(draw.seed, self.compiled.preset.name, other, reason, distribution=draw.distribution)
        return Failed(Incorrect(failure), excusable=False)

    def _run_on(self, draw: Draw, inputs: list[Any]) -> list[np.ndarray]:
        """Its outputs on these inputs; the input kernel's are kept, since every candidate may ask for them."""
        if not self.kept_as:
            return self._run(self._tensors(inputs))
        name = f"{draw.distribution}/outputs/{self.kept_as}"
        kept = self.cache.known(self.compiled.reference, draw.seed, name)
        if kept is not None:
            return list(kept)
        began = time.thread_time()
        raw = self._run(self._tensors(inputs))
        self.cache.keep(self.compiled.reference, draw.seed, name, tuple(raw), time.thread_time() - began)
        return raw

    def _expected(self, draw: Draw, inputs: list[Any]) -> tuple[tuple[np.ndarray, ...], tuple[str, ...]]:
        """As `ReferenceCache.expected`.

        Raises BadReference where the reference's own inputs give an output without any finite value.
        """
        reference = self.compiled.reference
        expected, given = self.cache.expected(reference, draw.seed, draw.distribution, lambda: inputs)
        if draw.distribution == REFERENCE and not all(has_finite(e) for e in expected if e.size):
            raise BadReference(
                f"forward() of {self.request.task.name} gives no finite value at {self.compiled.preset.describe()} "
                f"with seed {draw.seed}: nothing can be compared with that (docs/tasks.md)"
            )
        return expected, given

    def _known_float32(self, execution: Execution) -> PlainFloat32 | None:
        """Where an earlier check of this draw came to it and all rows count: it decides, whatever noise alone says."""
        arrays = self.cache.known(self.compiled.reference, execution.draw.seed, self._plain(execution.draw))
        if arrays is None:
            return None
        plain = plain_float32(arrays, len(execution.expected))
        return plain if execution.draw.distribution == REFERENCE or plain.is_whole else None

    def _plain(self, draw: Draw) -> str:
        return f"{draw.distribution}/plain, by elements/{self._arithmetic}"

    def _by_float32(self, execution: Execution, noise: Sequence[np.ndarray]) -> PlainFloat32:
        """What the reference in float32 asks for."""
        reference, draw = self.compiled.reference, execution.draw

        def compute() -> tuple[np.ndarray, ...]:
            plain = reference.in_float32(execution.inputs)
            rows = [rows_within_float32(each) for each in plain]
            each_output = zip(rows, plain, execution.expected, noise, execution.stored_alike)
            asked = [
                needed(self._arithmetic, in_rows(within, got), in_rows(within, want), in_rows(within, off), alike)
                for within, got, want, off, alike in each_output
            ]
            elements = [np.zeros(0, np.float32) if each.elements is None else each.elements for each in asked]
            unknown = any(is_floating(each) and each.dtype.itemsize > 4 for each in plain)
            return np.array([unknown, *(each.times for each in asked)], np.float64), *rows, *elements

        arrays = self.cache.of_draw(reference, draw.seed, self._plain(draw), compute)
        return plain_float32(arrays, len(execution.expected))

    def _by_other_roundings(
        self, execution: Execution, noise: Sequence[np.ndarray], plain: PlainFloat32
    ) -> PlainFloat32:
        """`plain`, wider by what float32 needs where sums are taken one by one, and by what the reference itself may be
        off in float64, and by what underflows on the way: four runs of it, once the cheaper limits have refused."""
        reference, draw = self.compiled.reference, execution.draw

        def compute() -> tuple[np.ndarray, ...]:
            one_by_one = reference.in_float32_one_by_one(execution.inputs)
            each_output = zip(plain.rows, one_by_one, execution.expected, noise, execution.stored_alike)
            slack, held = ONE_BY_ONE_SLACK, self._arithmetic
            asked = [
                needed(held, in_rows(rows, got), in_rows(rows, want), in_rows(rows, off), alike, slack)
                for rows, got, want, off, alike in each_output
            ]
            other = reference.in_other_float64(execution.inputs, draw.seed)
            own = map(off_elsewhere, other, execution.expected, noise)
            lost = map(lost_by_underflow, reference.flushed(execution.inputs), execution.expected)
            return np.array([each.times for each in asked]), *map(np.add, own, lost)

        name = f"{draw.distribution}/other roundings/{self._arithmetic}"
        try:
            times, *allowance = self.cache.of_draw(reference, draw.seed, name, compute)
        except BadReference as error:  # it takes plain arrays only
            return replace(plain, unknown=plain.unknown or f"what float32 may get wrong is not known: {error}")
        wider = tuple(max(one, float(other)) for one, other in zip(plain.wider, times))
        return replace(plain, wider=wider, allowance=tuple(allowance))

    def _compare(
        self,
        execution: Execution,
        noise: Sequence[np.ndarray] | None,
        plain: PlainFloat32 | None = None,
        quick: bool = False,
    ) -> Passed | Off:
        """Output by output, up to the first that fails. `quick`: nobody is told in what."""
        draw = execution.draw
        worst = 0.0
        for number, (got, want) in enumerate(zip(execution.outputs, execution.expected)):
            distance, failure = check_output(
                got,
                want,
                place=Place(draw.seed, self.compiled.preset.name, number, draw.distribution),
                arithmetic=self._arithmetic.widened(1.0 if plain is None else plain.wider[number]),
                noise=None if noise is None else noise[number],
                elements=None if plain is None else plain.elements[number],
                allowance=plain.allowance[number] if plain is not None and plain.allowance else None,
                bound=self.request.task.tolerance if draw.distribution == REFERENCE else None,
                stored=execution.stored[number],
                quick=quick,
            )
            if failure is not None:
                return Off(distance, failure)
            worst = max(worst, distance)
        types = tuple(each.dtype.name for each in execution.raw)
        rounding = max((each.relative for each in execution.stored), default=0.0)
        rounded_integers = self.toolchain.rounded_integers(self.compiled.artifact)
        return Passed(worst, types=types, rounding=rounding, rounded_integers=rounded_integers)

    def _made_up(self, execution: Execution, output: int) -> Implausible | None:
        """One value everywhere, or for other inputs the same bits where the reference says something else.

        Only for the reference's own inputs: under changed ones that may be a numeric fault, such as an overflow, and
        is told as one.
        """
        blank = one_value(execution.outputs[output], execution.expected[output])
        if blank is not None:
            return Implausible(blank)
        seed = execution.draw.seed
        other = self.compiled.reference.inputs(seed + 1)
        if not same_bits(execution.raw, self._run(self._tensors(other))):
            return None
        if same_bits(execution.expected, tuple(map(widened, self.compiled.reference.expected(other)))):
            return None
        return Implausible(
            f"the outputs for seeds {seed} and {seed + 1} are the same bits at {self.compiled.preset.name}, "
            f"where the reference differs: they do not depend on the inputs"
        )

    def _tensors(self, inputs: list[Any]) -> list[np.ndarray]:
        """The kernel's arguments without the constants, which the artifact holds."""
        return [a for a in self.compiled.reference.kernel_arguments(inputs) if isinstance(a, np.ndarray)]

    def _run(self, tensors: list[np.ndarray]) -> list[np.ndarray]:
        return self.toolchain.run(self.compiled.artifact, tensors, self.request.limits.run_timeout_s)
