"""Whether a compiled kernel computes what the reference does: on which inputs, in which tier, and if not, why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Union

import numpy as np

from accelopt_core.evaluation import (
    CheckFailure,
    CompileFailed,
    Evaluation,
    Furthest,
    Implausible,
    Incorrect,
    explain,
)
from accelopt_core.judging.closeness import (
    Arithmetic,
    Place,
    Storage,
    arithmetic_of,
    check_elements,
    check_output,
    needed,
    rows_within_float32,
    storage_of,
)
from accelopt_core.judging.distributions import is_floating
from accelopt_core.judging.plausibility import first_changed, one_value, same_bits
from accelopt_core.judging.side_by_side import side_by_side
from accelopt_core.judging.verification import (
    NOISES,
    BadReference,
    Reference,
    ReferenceCache,
    UnusableOutputs,
    has_finite,
    widened,
)
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import REFERENCE, ShapePreset
from accelopt_core.toolchain import ArgumentSpec, CandidateFault, TensorArgument, Toolchain

AT_FULL_SHAPE = ("mixed", "scaled-rows")
"""Changed inputs before a candidate can become the best: the first, and the next where float32 overflows on some rows.

`mixed` has rows of every kind that the others are made of: one draw does for all where a draw costs most."""


LARGE = 1 << 24
"""Elements of an output from which on changed inputs, like the reference's own, are compared without noise first.

Noise takes up to four more runs of the reference. Without it single small elements are held to their row, which at
the gates they are not; and in `mixed` inputs the rows that are constant show what becomes of one value.
"""


_UNKNOWN = (
    "forward() of the reference makes float64 of float32 inputs (np.sqrt(2) and np.vectorize do), so that what float32 "
    "itself gets wrong here is not known: let it keep the dtype that it is given (docs/tasks.md)"
)


_ROUNDED_INTEGERS = (
    "integers beyond 2^24 became float32, which does not hold all of them: split them in two, or keep them on GpSimd, "
    "which computes with 32-bit integers exactly"
)


class Wrong(Exception):
    """The candidate failed a check: carries what is wrong with it up to the judge."""

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__()
        self.evaluation = evaluation


@dataclass(frozen=True)
class Compiled:
    """A candidate at one shape."""

    preset: ShapePreset
    reference: Reference
    specs: tuple[ArgumentSpec, ...]
    artifact: Any
    tensor_bytes: int
    """Of the arguments together."""


@dataclass(frozen=True)
class Draw:
    """One set of inputs."""

    seed: int
    distribution: str
    otherwise: tuple[str, ...] = ()
    """Distributions to take, one after the other, where float32 overflows on this one."""
    twice: bool = False
    """Executed twice, and a fault where the bits differ."""


def count(draws: Sequence[Draw]) -> str:
    """For people."""
    return f"{len({d.seed for d in draws})} seeds, {len({d.distribution for d in draws})} input distributions"


def draws_at_a_gate(request: EvaluationRequest, proved_equal: bool = False) -> tuple[Draw, ...]:
    """Every seed with the reference's own inputs, every other distribution with one; all with all for the winner.

    Published seeds for the distributions, whose references are then computed once in a session. `proved_equal`: to the
    input kernel, on the simulator. Then the winner gets each distribution with the secret seeds.
    """
    published, secret = request.task.seeds, request.extra_seeds
    changed = published[:1]
    if request.final:
        changed = secret if proved_equal and secret else published + secret
    return _own(published + secret) + _others(request, changed)


def draws_at_full_shape(request: EvaluationRequest, settled: bool = False) -> tuple[Draw, ...]:
    """One published and one secret seed, and changed inputs of a secret one; every seed for the final winner.

    A task of one shape has no gate: each distribution is drawn here. `settled`: what is timed was proved equal to the
    input kernel where the gates are, or is the input kernel. Then one published seed does, whose references, which take
    longer than the kernel, are computed once in a session; in the last check changed inputs are of a secret one. The
    input kernel is run on those only where a winner fails them.
    """
    task = request.task
    seeds = task.seeds + request.extra_seeds
    if len(task.presets) == 1:
        return _own(seeds) + _others(request, seeds[-1:])
    if settled and task.seeds:
        own, changed = task.seeds[:1], seeds[-1] if request.final else task.seeds[0]
    else:
        own, changed = seeds if request.final else task.seeds[:1] + request.extra_seeds[:1], seeds[-1]
    names = [name for name in AT_FULL_SHAPE if name in task.distributions]
    if not names or (settled and request.is_input):
        return _own(own)
    return (*_own(own), Draw(changed, names[0], tuple(names[1:])))


def _own(seeds: tuple[int, ...]) -> tuple[Draw, ...]:
    return tuple(Draw(seed, REFERENCE) for seed in seeds)


def _others(request: EvaluationRequest, seeds: tuple[int, ...]) -> tuple[Draw, ...]:
    return tuple(Draw(seed, name) for name in request.task.distributions[1:] for seed in seeds)


def _several(draws: Sequence[Draw]) -> list[int]:
    """Seeds that more than one of them is of."""
    return [seed for seed, times in Counter(draw.seed for draw in draws).items() if times > 1]


def _next(draw: Draw) -> tuple[str, tuple[str, ...]]:
    return draw.otherwise[0], draw.otherwise[1:]


@dataclass(frozen=True)
class Excuses:
    """Which draws a kernel may fail: those that the task's input kernel, by the same judge, fails too."""

    input_kernel: Callable[[], Verifier] | None
    """What runs it; None: it is this very kernel."""
    own_too: bool = False
    """Also of the reference's own inputs, as long as it is right on another of those."""


@dataclass(frozen=True)
class Verified:
    """What a candidate passed at one shape."""

    relative_l2: float
    """The worst on the reference's own inputs."""
    line: str
    """For people: the shape, what was drawn, and how close the outputs came."""
    shared_faults: tuple[str, ...] = ()
    """Draws that the task's input kernel fails as well, one line each: left out."""
    furthest: Furthest | None = None
    """On the reference's own inputs, where the task has a suite's own rule."""
    identical: int = 0
    """Draws on which every bit was the input kernel's, where the task asks for that."""
    types: tuple[str, ...] = ()
    """Of the outputs, as the kernel returned them and NumPy calls them."""


@dataclass(frozen=True)
class Passed:
    """The outputs of one draw are right."""

    relative_l2: float
    """The worst of the outputs."""
    furthest: Furthest | None = None
    """As `Verified.furthest`, of this draw."""
    types: tuple[str, ...] = ()
    """As `Verified.types`."""
    rounding: float = 0.0
    """What the outputs' own types add to the bound on that: the most, as relative L2."""
    rounded_integers: bool = False
    """As `Toolchain.rounded_integers`."""


@dataclass(frozen=True)
class BeyondFloat32:
    """Changed inputs on which the reference itself overflows in float32, in some rows or all; other rows are right."""


@dataclass(frozen=True)
class Failed:
    """What is wrong with the kernel, as one draw shows it."""

    evaluation: Evaluation
    excusable: bool = True
    """By what the input kernel does; not a suite's own rule, which holds for whatever is handed in, nor other bits."""


CheckResult = Union[Passed, BeyondFloat32, Failed]
"""On one draw. A value, since it comes from a forked process."""


@dataclass(frozen=True)
class _Execution:
    """One draw: what the reference says of it, and what the kernel does."""

    draw: Draw
    inputs: list[Any]
    expected: tuple[np.ndarray, ...]
    raw: list[np.ndarray]
    """As the kernel returned them."""
    outputs: list[np.ndarray]
    """What the reference's `transform_nki_outputs` makes of those; as many as `expected`."""
    stored: tuple[Storage, ...]
    """Of each output, what the types that it and the reference's are stored in make of it."""
    stored_alike: tuple[Storage, ...]
    """The same, were it stored as the reference's is."""


@dataclass(frozen=True)
class _Off:
    """An output that is further off than the limits it was held to."""

    distance: float
    """Relative L2 over the whole output; infinite where a value is not finite, or the shape is another."""
    failure: CheckFailure


@dataclass(frozen=True)
class _Float32:
    """What plain float32 arithmetic needs on one draw."""

    wider: tuple[float, ...]
    """Each output's limits are so many times wider."""
    rows: tuple[np.ndarray, ...]
    """Rows of each output that it can represent; the others say nothing."""
    elements: tuple[np.ndarray | None, ...]
    """Of each output, as `Needed.elements`."""
    unknown: bool
    """`forward` left float32 on its way, so that all this is of float64."""

    @property
    def is_whole(self) -> bool:
        return all(rows.all() for rows in self.rows)

    def of(self, execution: _Execution) -> _Execution:
        """With zeros in all other rows."""
        return _in_rows(execution, self.rows)


def _as_float32(arrays: tuple[np.ndarray, ...], outputs: int) -> _Float32:
    """As it was kept."""
    numbers, *others = arrays
    elements = (each if each.size else None for each in others[outputs:])
    return _Float32(tuple(numbers[1:].tolist()), tuple(others[:outputs]), tuple(elements), bool(numbers[0]))


def _in_rows(execution: _Execution, rows: Sequence[np.ndarray]) -> _Execution:
    """With zeros in all other rows, of the reference's outputs and of the kernel's."""
    outputs = [
        got if got.shape != want.shape else _kept(each, got)
        for each, got, want in zip(rows, execution.outputs, execution.expected)
    ]
    return replace(execution, outputs=outputs, expected=tuple(map(_kept, rows, execution.expected)))


def _kept(rows: np.ndarray, array: np.ndarray) -> np.ndarray:
    """With zeros in all other rows; not copied where there are none, since it may be gigabytes."""
    return array if rows.all() else np.where(rows, array, 0)


def _joined(all_of_them: Sequence[Furthest]) -> Furthest | None:
    if not all_of_them:
        return None
    return Furthest(max(each.absolute for each in all_of_them), max(each.relative for each in all_of_them))


@dataclass(frozen=True)
class Verifier:
    """Runs a candidate at one shape and holds its outputs against the reference's."""

    request: EvaluationRequest
    toolchain: Toolchain
    compiled: Compiled
    cache: ReferenceCache
    twin: Any = None
    """The input kernel's artifact, where outputs must equal its in every bit."""

    def count(self, artifact: Any, draws: Sequence[Draw]) -> None:
        """Run another artifact on the same inputs, where its time depends on that."""
        for draw in draws if self.toolchain.counts(artifact) else ():
            inputs = self.compiled.reference.inputs(draw.seed, draw.distribution)
            self.toolchain.run(artifact, self._tensors(inputs), self.request.limits.run_timeout_s)

    def verify(self, draws: Sequence[Draw], twice: bool = False, excuses: Excuses | None = None) -> Verified:
        """Every draw, as many at a time as the machine can. Raises Wrong at the first, in their order, that fails.

        `twice`: the first draw is executed again, and must give the same bits. What `excuses` has is left out, and
        said; in rows on which the input kernel gives numbers, this one is held to them still.
        """
        if twice:
            draws = (replace(draws[0], twice=True), *draws[1:])
        worst = rounding = 0.0
        types: tuple[str, ...] = ()
        rounded_integers = False
        furthest: list[Furthest] = []
        left_out: list[str] = []
        failed: list[tuple[Draw, Failed]] = []
        at_once = 0 if self.toolchain.counts(self.compiled.artifact) else self.toolchain.parallel_runs
        held = self.toolchain.memory_bytes(self.compiled.artifact)
        self.compiled.reference.keep(_several(draws))
        verdicts = side_by_side(self._check, draws, self.compiled.tensor_bytes, at_once, held)
        for draw, verdict in zip(draws, verdicts):
            own = draw.distribution == REFERENCE
            if isinstance(verdict, Failed):
                excusable = verdict.excusable and isinstance(verdict.evaluation, Incorrect)
                if excuses is None or not excusable or (own and not excuses.own_too):
                    raise Wrong(verdict.evaluation)
                failed.append((draw, verdict))
            elif isinstance(verdict, BeyondFloat32):
                left_out.append(draw.distribution)
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
        identical = len(draws) if self.twin is not None else 0
        line = self._line(draws, worst, rounding, left_out, len(shared))
        line += f"; {_ROUNDED_INTEGERS}" if rounded_integers else ""
        return Verified(worst, line, shared, _joined(furthest), identical, types)

    def _shared(
        self, failed: Sequence[tuple[Draw, Failed]], input_kernel: Callable[[], Verifier] | None
    ) -> tuple[str, ...]:
        """What is left out of these draws. Raises Wrong at the first that the input kernel passes or cannot run."""
        if input_kernel is None:
            return tuple(explain(verdict.evaluation) for _, verdict in failed)
        said = []
        other: Verifier | None = None
        for draw, verdict in failed:
            try:
                other = other or input_kernel()
                theirs = other._check(draw)
                if not isinstance(theirs, Failed) or not isinstance(theirs.evaluation, Incorrect):
                    raise Wrong(verdict.evaluation)
                rows = other._rows_with_numbers(draw)
                if rows is not None and isinstance(other._check(draw, rows), Passed):
                    held = self._check(draw, rows)
                    if not isinstance(held, Passed):
                        raise Wrong(held.evaluation if isinstance(held, Failed) else verdict.evaluation)
            except CandidateFault:
                raise Wrong(verdict.evaluation) from None
            mine, others = explain(verdict.evaluation), explain(theirs.evaluation)
            said.append(f"{mine}; the input kernel too" if mine == others else f"{mine}; the input kernel: {others}")
        return tuple(said)

    def _rows_with_numbers(self, draw: Draw) -> tuple[np.ndarray, ...] | None:
        """bool [..., 1] of each output: rows that this kernel gives finite values on; None where it has only such."""
        execution = self._execute(draw)
        if isinstance(execution, Failed):
            return None
        shapes = zip(execution.outputs, execution.expected)
        if any(got.shape != want.shape or not got.ndim for got, want in shapes):
            return None
        rows = tuple(np.isfinite(got).all(axis=-1, keepdims=True) for got in execution.outputs)
        return None if all(each.all() for each in rows) else rows

    def _line(self, draws: Sequence[Draw], worst: float, rounding: float, left_out: Sequence[str], shared: int) -> str:
        preset = self.compiled.preset
        return (
            f"{preset.name} ({preset.describe()}): {count(draws)}, "
            f"worst relative L2 {worst:.2g} <= {self.request.task.tolerance:.2g}"
            + (f" + {rounding:.2g} by its type" if rounding else "")
            + (f"; rows beyond float32, left out: {', '.join(dict.fromkeys(left_out))}" if left_out else "")
            + (f"; left out, since the input kernel fails them too: {shared} draws" if shared else "")
        )

    def _check(self, draw: Draw, within: tuple[np.ndarray, ...] | None = None) -> CheckResult:
        """One execution, compared as cheaply as decides it. `within`: rows of each output, bool [..., 1]; all others
        are not looked at."""
        execution = self._execute(draw)
        if isinstance(execution, Failed):
            return execution
        if within is not None:
            execution = _in_rows(execution, within)
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
        return replace(result, furthest=_joined(furthest))

    def _by_noise(self, execution: _Execution) -> CheckResult:
        draw = execution.draw
        own = draw.distribution == REFERENCE
        quick = own or max((e.size for e in execution.expected), default=0) >= LARGE
        compared = self._compare(execution, None) if quick else None
        if isinstance(compared, Passed):
            return compared
        if own and compared is not None and compared.distance > self.request.task.tolerance:
            return self._failed(execution, compared)
        plain = self._known_float32(execution)
        with closing(self._noises(execution)) as noises:
            for noise in noises:
                if plain is not None:
                    continue  # the widest limits are known, and decide
                compared = self._compare(execution, noise)
                if isinstance(compared, Passed):
                    return compared
        plain = plain or self._by_float32(execution, noise)
        if own or plain.is_whole:
            compared = self._compare(execution, noise, plain)
            return compared if isinstance(compared, Passed) else self._failed(execution, compared, plain)
        compared = self._compare(plain.of(execution), list(map(_kept, plain.rows, noise)), plain)
        if not isinstance(compared, Passed):
            return self._failed(execution, compared, plain)
        return self._check(Draw(draw.seed, *_next(draw))) if draw.otherwise else BeyondFloat32()

    def _failed(self, execution: _Execution, off: _Off, plain: _Float32 | None = None) -> Failed:
        own = execution.draw.distribution == REFERENCE
        failure = off.failure
        if plain is not None and plain.unknown:
            failure = replace(failure, reason=f"{failure.reason}, but {_UNKNOWN}")
        if self.toolchain.rounded_integers(self.compiled.artifact):
            failure = replace(failure, reason=f"{failure.reason}, and {_ROUNDED_INTEGERS}")
        return Failed((self._made_up(execution, failure.output) if own else None) or Incorrect(failure))

    @property
    def _arithmetic(self) -> Arithmetic:
        return arithmetic_of(self.request.task, self.toolchain.simulated)

    def _noises(self, execution: _Execution) -> Generator[tuple[np.ndarray, ...], None, None]:
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

    def _execute(self, draw: Draw) -> _Execution | Failed:
        """Runs reference and kernel; Failed where the outputs cannot even be set beside the reference's."""
        reference = self.compiled.reference
        inputs = reference.inputs(draw.seed, draw.distribution)
        raw = self._run(self._tensors(inputs))
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
        expected = self._expected(draw, inputs)
        try:
            outputs = reference.outputs(raw, expected)
        except UnusableOutputs as error:
            reason = f"transform_nki_outputs cannot take the outputs: {error}"
            preset = self.compiled.preset.name
            return Failed(Incorrect(CheckFailure(draw.seed, preset, 0, reason, distribution=draw.distribution)))
        if len(outputs) != len(expected):
            return Failed(CompileFailed(f"the kernel returns {len(outputs)} tensors, the reference {len(expected)}"))
        arguments = {spec.dtype for spec in self.compiled.specs if isinstance(spec, TensorArgument)}
        both = [(got.dtype.name, e.dtype.name) for got, e in zip(outputs, expected)]
        stored = tuple(storage_of(got, theirs, arguments) for got, theirs in both)
        alike = tuple(storage_of(theirs, theirs, arguments) for _, theirs in both)
        expected, outputs = tuple(map(widened, expected)), list(map(widened, outputs))
        return _Execution(draw, inputs, expected, raw, outputs, stored, alike)

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

    def _expected(self, draw: Draw, inputs: list[Any]) -> tuple[np.ndarray, ...]:
        """Raises BadReference where the reference's own inputs give an output without any finite value."""
        reference = self.compiled.reference
        expected = self.cache.of_draw(reference, draw.seed, draw.distribution, lambda: reference.expected(inputs))
        if draw.distribution == REFERENCE and not all(has_finite(e) for e in expected if e.size):
            raise BadReference(
                f"forward() of {self.request.task.name} gives no finite value at {self.compiled.preset.describe()} "
                f"with seed {draw.seed}: nothing can be compared with that (docs/tasks.md)"
            )
        return expected

    def _known_float32(self, execution: _Execution) -> _Float32 | None:
        """Where an earlier check of this draw came to it and all rows count: it decides, whatever noise alone says."""
        arrays = self.cache.known(self.compiled.reference, execution.draw.seed, self._plain(execution.draw))
        if arrays is None:
            return None
        plain = _as_float32(arrays, len(execution.expected))
        return plain if execution.draw.distribution == REFERENCE or plain.is_whole else None

    def _plain(self, draw: Draw) -> str:
        return f"{draw.distribution}/plain, by elements/{self._arithmetic}"

    def _by_float32(self, execution: _Execution, noise: Sequence[np.ndarray]) -> _Float32:
        """What the reference in float32 asks for."""
        reference, draw = self.compiled.reference, execution.draw

        def compute() -> tuple[np.ndarray, ...]:
            plain = reference.in_float32(execution.inputs)
            rows = [rows_within_float32(each) for each in plain]
            each_output = zip(rows, plain, execution.expected, noise, execution.stored_alike)
            asked = [
                needed(self._arithmetic, _kept(within, got), _kept(within, want), _kept(within, off), alike)
                for within, got, want, off, alike in each_output
            ]
            elements = [np.zeros(0, np.float32) if each.elements is None else each.elements for each in asked]
            unknown = any(is_floating(each) and each.dtype.itemsize > 4 for each in plain)
            return np.array([unknown, *(each.times for each in asked)], np.float64), *rows, *elements

        arrays = self.cache.of_draw(reference, draw.seed, self._plain(draw), compute)
        return _as_float32(arrays, len(execution.expected))

    def _compare(
        self, execution: _Execution, noise: Sequence[np.ndarray] | None, plain: _Float32 | None = None
    ) -> Passed | _Off:
        """Output by output, up to the first that fails."""
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
                bound=self.request.task.tolerance if draw.distribution == REFERENCE else None,
                stored=execution.stored[number],
            )
            if failure is not None:
                return _Off(distance, failure)
            worst = max(worst, distance)
        types = tuple(each.dtype.name for each in execution.raw)
        rounding = max((each.relative for each in execution.stored), default=0.0)
        rounded_integers = self.toolchain.rounded_integers(self.compiled.artifact)
        return Passed(worst, types=types, rounding=rounding, rounded_integers=rounded_integers)

    def _made_up(self, execution: _Execution, output: int) -> Implausible | None:
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
