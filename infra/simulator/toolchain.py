"""The simulator as a toolchain: a candidate is traced in a process of its own, and its program run and timed here.

Shipped to the instance.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, TypeVar

import ml_dtypes
import numpy as np

import nki_sim
from accelopt_core.evaluation import Finding, HotLine, Idle, Installed, Likely, Proof, Property, Step
from accelopt_core.judging.plausibility import first_changed
from accelopt_core.language import Finding as TextFinding
from accelopt_core.language import Language
from accelopt_core.languages.nki.language import NKI
from accelopt_core.languages.nki.neuron_cores import NeuronCores
from accelopt_core.languages.python_rules import lines_with_code
from accelopt_core.task import ALONE, Surroundings
from accelopt_core.toolchain import (
    ArgumentSpec,
    Calibration,
    CandidateFault,
    CompileError,
    Facts,
    RunError,
    StepTimeout,
    Timing,
    ToolchainMissing,
    Traced,
)
from infra.isolation import sandbox
from infra.isolation.deadline import within
from infra.isolation.report import is_lacking as lacks_isolation
from infra.scratch_folder import ScratchFolder
from infra.simulator.trace_server import ServerGone, TraceServer, fork_one
from infra.simulator.trace_worker import LENGTH_BYTES
from nki_sim.checks.accumulation import device_doubts
from nki_sim.checks.precision import low_precision
from nki_sim.checks.unwritten import may_read_unwritten
from nki_sim.encoding import canonical, program_file
from nki_sim.errors import NkiError, NkiValidationError, ProgramFormatError, TooLong
from nki_sim.execution.executor import Unwritten, execute_counting, held_bytes
from nki_sim.isa.arithmetic.numerics import take_rounded_integers
from nki_sim.machine import Machine
from nki_sim.nki.run import iterate
from nki_sim.profile import profile
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.passes import MOST_ROWS, Passes, executed_rows, must_be_counted, unrolled
from nki_sim.program.program import Program
from nki_sim.proofs import proof
from nki_sim.proofs.equivalence import Original, Proofs, covered, from_arrays, prove, to_arrays
from nki_sim.proofs.execution import Input
from nki_sim.proofs.proof import NotProvable
from nki_sim.proofs.rounding import error_bound, narrows
from nki_sim.timing.calibration import calibrated_machine
from nki_sim.timing.capacity import check_capacity
from nki_sim.timing.contested import contested
from nki_sim.timing.cost import cost
from nki_sim.timing.schedule import Timeline, resource_bound

log = logging.getLogger(__name__)

Known = TypeVar("Known")

TREE = Path(__file__).resolve().parents[2]
"""What the processes that are started here are loaded from."""

MOST_RUNS = 64
"""Side by side, where nobody says otherwise and there are as many cores."""

PROGRAM_LIMIT = 1 << 30
"""Bytes of a traced program; the largest of the shipped seeds needs a hundredth."""

LONGEST_US = 2e6
"""Of device time, in µs: what needs more for its own instructions alone is not executed. The slowest of the shipped
seeds needs a fiftieth."""

PRICING_S = 600.0
"""For the timeline of one program; the longest of the shipped seeds takes a hundredth."""

PROVING_S = 120.0
"""For one property of one program; those of the shipped seeds take a tenth. No verdict needs a proof."""

DECIDED_RUN_S = 60.0
"""For one execution of a program whose loops run as often as registers say: nobody can tell beforehand."""

_LAST_LINE = 1_000_000
"""Of a kernel's file."""

DISK_LIMIT = 1 << 30
"""Bytes a candidate may leave in its work folder where the folder is not in memory (infra.isolation.namespaces)."""


class Simulated:
    """An artifact of the simulator: a program, and its timing once somebody asked.

    Where registers decide how often device loops run, the executions count it, and the timing takes the most that
    any of them counted: what is timed is what was verified.
    """

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program = program
        self._machine = machine
        self.held_bytes = sum(held_bytes(each) for each in iterate(program))
        """In this machine's memory, while it runs."""
        self.passes: Passes | None = None
        """None until it was executed, and where nothing has to be counted."""
        self.counts = must_be_counted(program)
        self.rounded_integers = False
        """By the last execution."""

    def run(self, tensors: Sequence[np.ndarray], timeout_s: float) -> list[np.ndarray]:
        """Outputs. Raises NkiError for what the instructions do not allow, and where they are a matter of chance."""
        limit_s = min(timeout_s, DECIDED_RUN_S) if self.counts else timeout_s
        take_rounded_integers()
        outputs, passes = execute_counting(self.program, tensors, limit_s=limit_s)
        if self.program.peers:
            others, _ = execute_counting(self.program, tensors, last_core_first=True, limit_s=limit_s)
            number = first_changed(outputs, others)
            if number is not None:
                raise NkiValidationError(
                    f"two cores race: output {number} depends on which of them is first; put nisa.core_barrier "
                    "between what one writes and the other uses"
                )
        if self.may_read_unwritten and not any(map(_has_nan, outputs)):  # where it has, that shows it already
            others, _ = execute_counting(self.program, tensors, limit_s=limit_s, unwritten=Unwritten.zeros)
            number = first_changed(outputs, others)
            if number is not None:
                raise NkiValidationError(
                    f"output {number} depends on memory that nothing wrote: on the device that holds anything; write "
                    "all of a tile before it is read, masks and counters too"
                )
        self.rounded_integers = take_rounded_integers()
        if self.counts:
            most = passes if self.passes is None else self.passes.most(passes)
            if most != self.passes:
                self.passes = most
                self.__dict__.pop("measurement", None)
        return outputs

    @cached_property
    def may_read_unwritten(self) -> bool:
        return may_read_unwritten(self.program)

    @cached_property
    def measurement(self) -> profile.Measurement:
        """Raises RunError for a program that cannot be timed."""
        return self._asked(lambda: profile.measure(self.program, self._machine, passes=self.passes))

    def timelines(self) -> tuple[Timeline, ...]:
        """Of each core it runs on. Raises as `measurement`."""
        return self._asked(lambda: profile.timelines(self.program, self._machine, passes=self.passes))

    def _asked(self, ask: Callable[[], Known]) -> Known:
        try:
            return ask()
        except NkiError as error:
            raise RunError(f"it cannot be timed: {error}") from None
        except (ArithmeticError, AssertionError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise RunError(f"it cannot be timed: {type(error).__name__}: {error}") from None


@dataclass(frozen=True)
class _Compilation:
    """Of one compiling process: how it ended, and what it wrote to the files it was given."""

    finished: sandbox.Finished
    programs: bytes
    """One after the other, each with its length before it."""
    failures: bytes
    """A line for each kernel that failed."""
    isolation: str
    """Said when all was imported and before the candidate was read; nothing that comes later can unsay it."""


_LEAST_FREE_BYTES = 1 << 20
"""Bytes of the temporary folder's disk: the programs of most kernels have fewer."""


class SimulatorToolchain:
    """Compiles by tracing in a process of the candidate's own; runs and times the program here.

    What runs here is data that the candidate's process left, checked on loading; no code of its.
    """

    language: Language = NKI
    simulated = True
    installed = Installed()

    def __init__(
        self,
        machine: str,
        *,
        calibration: Calibration | None = None,
        memory_bytes: int = sandbox.CANDIDATE_BYTES,
        namespaces: bool = True,
        parallel_runs: int = MOST_RUNS,
    ) -> None:
        """`calibration`: times are those of the machine as one device showed it.
        `parallel_runs`: at most so many, each in a process of its own.
        `namespaces`: False leaves them out even where they are to be had.
        """
        self.model = calibrated_machine(machine, calibration)
        self.machine = NeuronCores(self.model)
        self._calibration = calibration
        self._memory_bytes = min(memory_bytes, _half_of_memory())
        self._namespaces = namespaces
        self.parallel_runs = parallel_runs
        self.isolation = ""
        self._scratch = ScratchFolder("nki-sim-")
        self._folder = self._scratch.path
        self._count = 0
        self._may_fork = namespaces and sys.platform == "linux"
        """Until a first one shows that it is not isolated here."""
        self._forking = threading.Lock()
        self._server: TraceServer | None = None

    @property
    def name(self) -> str:
        uncalibrated = "" if self.model.calibrated else ", uncalibrated"
        on_a_device = f", {self._calibration.label}" if self._calibration is not None else ""
        return f"simulated {self.model.name}{uncalibrated} (nki_sim {nki_sim.__version__}{on_a_device})"

    @property
    def caveat(self) -> str:
        return "" if self.model.calibrated else self.model.calibration

    @cached_property
    def fingerprint(self) -> str:
        """As the function of that name."""
        return simulator_fingerprint(self.model.name, self._calibration)

    def traced(
        self, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings = ALONE
    ) -> None:
        """There is no second opinion: what is measured here is the trace."""

    def compile(
        self, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings = ALONE
    ) -> Simulated:
        (made,) = self.compile_each((source,), (arguments,), timeout_s, around)
        if isinstance(made, CompileError):
            raise made
        return made[0]

    def compile_each(
        self,
        sources: Sequence[str],
        presets: Sequence[Sequence[ArgumentSpec]],
        timeout_s: float,
        around: Surroundings = ALONE,
        says_why: bool = True,
    ) -> list[tuple[Simulated, ...] | CompileError]:
        """Each kernel at each of these shapes, all traced in one process; for one that fails at a shape, why.

        `says_why`: of a loop's passes the first that fails is named, for which all are run; else it may be another.

        One kernel could change what the next one is traced to, so several are only for prices, of kernels that are
        rewrites of one. `timeout_s` is for all of them. Raises CandidateFault where their process ended before its
        time or took too long, and no one knows by whose fault.
        """
        try:
            traced = self._compiled(sources, presets, timeout_s, around, says_why)
        except OSError as unwritten:
            if unwritten.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise self._full_disk() from unwritten
        self.isolation = traced.isolation
        finished = traced.finished
        if finished.over_disk:
            raise CompileError(f"the kernel's file writes more than {DISK_LIMIT >> 20} MiB to disk")
        if finished.timed_out:
            raise StepTimeout(Step.COMPILE, timeout_s)
        if finished.status != 0:
            if shutil.disk_usage(self._folder).free < _LEAST_FREE_BYTES:  # by which no kernel is shown to be wrong
                raise self._full_disk()
            error = _compile_error(traced.failures, finished)
            if not traced.isolation and not (alone := self._compiled((), (), timeout_s, ALONE)).isolation:
                # The candidate was not even read, and without one it is no better.
                raise ToolchainMissing(
                    f"the simulator does not start in a process of its own here: "
                    f"{_compile_error(alone.failures, alone.finished).message}; run `orchestrator.py doctor`"
                )
            raise error
        with within(timeout_s, lambda: StepTimeout(Step.COMPILE, timeout_s)):
            return self._checked_each(traced, sources, len(presets))

    def _full_disk(self) -> ToolchainMissing:
        return ToolchainMissing(
            f"{self._folder.parent} is full, and kernels are compiled there: free some space, or set TMPDIR to another "
            "folder, then run again"
        )

    def _checked_each(
        self, traced: _Compilation, sources: Sequence[str], shapes: int
    ) -> list[tuple[Simulated, ...] | CompileError]:
        parts, failures = iter(_parts(traced.programs)), iter(traced.failures.splitlines())
        of_each: list[tuple[bytes, ...] | bytes] = []
        """Programs, or why there are none."""
        for _ in sources:
            first = next(parts, b"")
            programs = (first, *islice(parts, shapes - 1)) if first else ()
            why = b"" if first else next(failures, b"")
            if not why and len(programs) < shapes:
                raise CompileError("the process ended without leaving a program")
            of_each.append(why or programs)
        if next(parts, None) is not None:
            raise CompileError("the traced program is damaged: there is more than was asked for")
        found: list[tuple[Simulated, ...] | CompileError] = []
        for source, left in zip(sources, of_each):
            if isinstance(left, bytes):
                found.append(_compile_error(left, traced.finished))
                continue
            code = lines_with_code(source)
            try:
                found.append(tuple(_checked(each, code, self.model) for each in left))
            except CompileError as error:
                found.append(error)
        return found

    def _compiled(
        self,
        sources: Sequence[str],
        presets: Sequence[Sequence[ArgumentSpec]],
        timeout_s: float,
        around: Surroundings,
        says_why: bool = True,
    ) -> _Compilation:
        """What the candidate's process left, whatever it did."""
        self._count += 1
        work = self._folder / f"compile-{self._count}"
        work.mkdir()
        limits = sandbox.ProcessLimits(timeout_s, self._memory_bytes, file_bytes=PROGRAM_LIMIT, disk_bytes=DISK_LIMIT)
        try:
            with ExitStack() as files:
                # Opened here and handed over, so that no name, link or folder of the candidate's is ever followed.
                program, failure, report = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
                job = {
                    "tree": str(TREE),
                    "work": str(work),
                    "texts": sources,
                    "module": around.module,
                    "path": around.path,
                    "neighbours": around.neighbours,
                    "program_fd": program.fileno(),
                    "failure_fd": failure.fileno(),
                    "report_fd": report.fileno(),
                    "namespaces": self._namespaces,
                    "parent": os.getpid(),
                    "machine": self.model.name,
                    "entry_points": around.entry_points,
                    "says_why": says_why,
                    "limits": asdict(limits),
                    "arguments": [[asdict(a) for a in arguments] for arguments in presets],
                }
                finished = self._traced_in_a_process(work, limits, job, (program, failure, report))
                isolation = _beginning(report, 4096).decode("utf-8", "replace")
                self._may_fork = bool(isolation) and not lacks_isolation(isolation)
                return _Compilation(
                    finished,
                    _beginning(program, PROGRAM_LIMIT),
                    _beginning(failure, (64 << 10) * (1 + len(sources))),
                    isolation,
                )
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _traced_in_a_process(
        self, work: Path, limits: sandbox.ProcessLimits, job: dict[str, object], files: tuple[IO[bytes], ...]
    ) -> sandbox.Finished:
        """Forked from one that has loaded all it needs; where what is forked cannot be isolated, it reads no candidate
        in, and that has a process of its own, as all that come later."""
        program, failure, report = (file.fileno() for file in files)
        stdin = json.dumps(job).encode()
        if self._may_fork and self._forking.acquire(blocking=False):
            try:
                self._server = server = self._server or self._new_server()
                finished = sandbox.watched(
                    lambda given, output: server.start(given, output, work, (program, failure, report)),
                    cwd=work,
                    limits=limits,
                    stdin=stdin,
                )
                if finished.timed_out or os.fstat(report).st_size:
                    return finished
                raise ServerGone("what it forks is not isolated")  # said before a candidate is read in: none was
            except BaseException as error:  # an answer may be on its way that belongs to no later candidate
                self._close_server()
                if not isinstance(error, ServerGone):
                    raise
                # the same in a process of its own takes only longer
                log.info("the process that forks workers is gone: %s", error)
                for file in files:
                    file.seek(0)
                    file.truncate()
            finally:
                self._forking.release()
        worker = Path(__file__).with_name("trace_worker.py")
        return sandbox.run(
            [sys.executable, "-I", str(worker)],
            cwd=work,
            limits=limits,
            stdin=stdin,
            env=sandbox.ONE_THREAD,
            pass_fds=(program, failure, report),
        )

    def _new_server(self) -> TraceServer:
        machine = self.model.name
        return TraceServer.forked_before(machine) or TraceServer.started(_start_python, TREE, machine)

    def _close_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def run(self, artifact: Simulated, tensors: Sequence[np.ndarray], timeout_s: float) -> list[np.ndarray]:
        try:
            with within(timeout_s, lambda: StepTimeout(Step.RUN, timeout_s)):
                return artifact.run(list(tensors), timeout_s)
        except CandidateFault:
            raise
        except NkiError as error:
            raise RunError(str(error)) from None
        except MemoryError:
            raise RunError("the kernel needs more memory than this machine has left") from None
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Of a forged program: what is traced fits together.
            said = f"{type(error).__name__}: {error}"
            raise RunError(f"the program's instructions do not fit their operands: {said}") from None

    def prove(
        self,
        artifact: Simulated,
        tensors: Sequence[np.ndarray],
        seed: int,
        tolerance: float,
        original: Callable[[], Simulated] | None,
        kept: Callable[[Callable[[], tuple[np.ndarray, ...]]], tuple[np.ndarray, ...]],
        matters: Callable[[Sequence[np.ndarray]], bool],
    ) -> tuple[Proof, ...]:
        inputs = [Input(None if tensor.dtype.kind not in "iub" else tensor) for tensor in tensors]
        bound: tuple[Proof, ...] = ()
        if narrows(artifact.program):
            in_bounds = _in_time(lambda: error_bound(artifact.program, tensors, tolerance), lambda late: late)
            bound = (_proof(Property.ERROR_BOUND, in_bounds),)
        if original is None:
            alone = _in_time(lambda: covered(artifact.program, inputs, seed, matters), lambda late: late)
            return _proof(Property.COVERAGE, alone), *bound
        compiled = original

        def program() -> Program:
            try:
                return compiled().program
            except CandidateFault as fault:
                raise NotProvable(f"it does not compile at this shape: {fault}") from None

        other = Original(program, inputs, seed, lambda compute: from_arrays(kept(lambda: to_arrays(compute()))))
        found = _in_time(lambda: prove(artifact.program, other, matters), lambda late: Proofs(late, late))
        return _proof(Property.COVERAGE, found.coverage), _proof(Property.EQUIVALENCE, found.equivalence), *bound

    def cores(self, artifact: Simulated) -> int:
        return 1 + len(artifact.program.peers)

    def memory_bytes(self, artifact: Simulated) -> int:
        return artifact.held_bytes

    def instructions(self, artifact: Simulated) -> int:
        return sum(map(executed_rows, iterate(artifact.program)))

    def program_digest(self, artifact: Simulated) -> str:
        return canonical.digest(artifact.program)

    def device_doubts(self, artifact: Simulated) -> tuple[TextFinding, ...]:
        found = device_doubts(artifact.program)
        return tuple(TextFinding(doubt.rule, doubt.line, doubt.describe()) for doubt in found)

    def rounded_integers(self, artifact: Simulated) -> bool:
        return artifact.rounded_integers

    def counts(self, artifact: Simulated) -> bool:
        return artifact.counts

    def estimate_us(self, artifact: Simulated) -> float | None:
        if artifact.counts and artifact.passes is None:
            return None
        with within(PRICING_S, lambda: StepTimeout(Step.BENCHMARK, PRICING_S)):
            return artifact.measurement.latency_us

    def timelines(self, artifact: Simulated) -> tuple[Timeline, ...]:
        """Of each core. Raises CandidateFault where it cannot be timed, also where only an execution tells how often
        its loops run."""
        if artifact.counts and artifact.passes is None:
            raise RunError("how often its loops run is decided by registers, and it was not executed")
        with within(PRICING_S, lambda: StepTimeout(Step.BENCHMARK, PRICING_S)):
            return artifact.timelines()

    def time(
        self, artifact: Simulated, tensors: Sequence[np.ndarray], warmup: int, iterations: int, timeout_s: float
    ) -> Timing:
        """One sample: the model is deterministic, so repeating it would only look like evidence."""
        with within(timeout_s, lambda: StepTimeout(Step.BENCHMARK, timeout_s)):
            return Timing((artifact.measurement.latency_us,))

    def facts(self, artifact: Simulated) -> Facts:
        measured, within = artifact.measurement, artifact.measurement.interval
        return Facts(
            fields=measured.fields,
            hot_lines=tuple(
                HotLine(line.line, line.engine, line.active_us, line.instructions) for line in measured.lines
            ),
            idle=tuple(Idle(**vars(stretch)) for stretch in measured.idle),
            matmul_flops=measured.matmul_flops,
            vector_ops=measured.vector_ops,
            hbm_bytes=measured.io_bytes,
            resource_bound_us=measured.resource_bound_us,
            low_precision=_low_precision(artifact.program),
            likely=Likely(
                within.low_us, within.high_us, within.level if self.model.calibrated else 0.0, measured.rests_on
            ),
            contested=measured.contested,
        )

    def close(self) -> None:
        self._close_server()
        self._scratch.close()


def simulator_fingerprint(machine: str, calibration: Calibration | None) -> str:
    """Of the machine, what it was calibrated to, every line and table of the simulator, and what it computes with."""
    digest = hashlib.sha256(f"{machine} {np.__version__} {ml_dtypes.__version__}".encode())
    if calibration is not None:
        digest.update(repr(calibration.constants).encode())
    for path in sorted(each for kind in ("*.py", "*.json") for each in (TREE / "nki_sim").rglob(kind)):
        digest.update(path.read_bytes())
    return f"sim-{machine}-{digest.hexdigest()[:12]}"


def prepare_for_a_job() -> None:
    """What a judge that will simulate can do before it knows its job: candidates are then forked sooner."""
    if sys.platform == "linux":
        fork_one(sandbox.scrubbed_environment(sandbox.ONE_THREAD))


def _start_python(fd: int, arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", *arguments],
        env=sandbox.scrubbed_environment(sandbox.ONE_THREAD),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=(fd,),
    )


def _has_nan(array: np.ndarray) -> bool:
    return bool((array != array).any())


def _in_time(prove: Callable[[], Known], otherwise: Callable[[proof.Proof], Known]) -> Known:
    """What is proved; `otherwise` of a proof that says so, where that would take too long."""
    try:
        with within(PROVING_S, lambda: NotProvable(f"it takes more than {PROVING_S:g} s")):
            return prove()
    except NotProvable as late:
        return otherwise(proof.Proof(proof.Finding.NOT_PROVABLE, str(late)))


def _proof(property: Property, found: proof.Proof) -> Proof:
    return Proof(property, Finding(found.finding.value), found.reason)


def traced_on_simulator(
    machine: str,
    source: str,
    arguments: Sequence[ArgumentSpec],
    timeout_s: float,
    around: Surroundings = ALONE,
    *,
    calibration: Calibration | None = None,
) -> Traced | None:
    """The simulator's second opinion on a source that a device of that machine runs, as shipped or as calibrated.

    None for a source that the simulator does not trace: of another dialect, or with what it does not know.
    """
    simulator = SimulatorToolchain(machine, calibration=calibration)
    try:
        artifact = simulator.compile(source, arguments, timeout_s, around)
    except (CandidateFault, ToolchainMissing) as fault:
        log.info("no second opinion from the simulator: %s", fault)
        return None
    finally:
        simulator.close()
    program = artifact.program
    rests_on: tuple[str, ...] = ()
    with suppress(CandidateFault):  # its time is the device's to tell
        rests_on = contested(simulator.timelines(artifact))
    flops, _, _ = profile.useful_work(program, [cost(template, simulator.model) for template in program.templates])
    return Traced(flops, _low_precision(program), rests_on)


def _low_precision(program: Program) -> tuple[str, ...]:
    return tuple(f"{rounded.name} (line {rounded.line})" for rounded in low_precision(program))


def _half_of_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError):  # not told by this system
        return 4 << 30


def _beginning(file: IO[bytes], limit: int) -> bytes:
    file.seek(0)
    return file.read(limit)


def _parts(traced: bytes) -> list[bytes]:
    """The programs in what the candidate's process left; a last one may be cut off, and its checks tell."""
    parts: list[bytes] = []
    at = 0
    while at < len(traced):
        start = at + LENGTH_BYTES
        at = start + int.from_bytes(traced[at:start], "little")
        parts.append(traced[start:at])
    return parts


def _checked(traced: bytes, code: frozenset[int], machine: Machine) -> Simulated:
    """The program in what the candidate's process left, counted and priced. `code`: lines of the source that can have
    issued an instruction. Raises CompileError for anything else."""
    if not traced:
        raise CompileError("the process ended without leaving a program")
    try:
        program = program_file.loads(traced, machine.name)
        for each in iterate(program):
            check_capacity(each)
        _check_length(program, machine)
        artifact = Simulated(program, machine)
    except ProgramFormatError as error:
        raise CompileError(f"the traced program is damaged: {error}") from None
    except NkiError as error:
        raise CompileError(str(error), error.line) from None
    except MemoryError:
        raise CompileError("checking its program needs more memory than the judge may use") from None
    if artifact.held_bytes > _half_of_memory():
        raise CompileError(
            f"the kernel uses {artifact.held_bytes >> 20:,} MiB of HBM and tiles at once; the simulator has "
            f"{_half_of_memory() >> 20:,} MiB here"
        )
    overwritten = _overwritten_parameters(program)
    if overwritten:
        raise CompileError(
            f"the kernel writes to its parameter {overwritten[0]} (counted from 0) and does not return it: parameters "
            "are immutable; store into an nl.ndarray of nl.shared_hbm, or return what is updated in place"
        )
    for each in iterate(program):
        for template in each.templates:
            if template.line not in code:
                raise CompileError(
                    f"the program has a {template.opcode} from line {template.line}, where the source has no code: "
                    "it was not traced from this source"
                )
    return artifact


def _check_length(program: Program, machine: Machine) -> None:
    """That it can be executed and timed, counted and priced before either. Raises NkiError."""
    rows = sum(executed_rows(each) for each in iterate(program))
    if rows > MOST_ROWS:
        raise TooLong(f"its device loops make it {rows:,} instructions long, more than {MOST_ROWS:,}: use fewer passes")
    if must_be_counted(program):
        return
    for each in iterate(program):
        written_out = unrolled(replace(each, peers=()))
        prices = [cost(template, machine) for template in each.templates]
        needed_us = resource_bound(written_out, prices, machine)[0] / 1e3
        if needed_us > LONGEST_US:
            raise TooLong(
                f"its instructions need at least {needed_us:,.0f} µs on {machine.name}, more than {LONGEST_US:,.0f}"
            )


def _overwritten_parameters(program: Program) -> list[int]:
    """Positions among the tensor arguments of those that are written and not returned: nobody compares them."""
    returned = {ref.allocation for ref in program.outputs}
    written = _written(program)
    shared = _shared(program)
    for peer in program.peers:  # the nth shared buffer of every core is the same memory
        theirs = _written(peer)
        for mine, other in zip(shared, _shared(peer)):
            written[mine] |= theirs[other]
    return [
        number
        for number, ref in enumerate(program.inputs)
        if written[ref.allocation] and ref.allocation not in returned
    ]


def _shared(program: Program) -> list[int]:
    return [a.id for a in program.allocations.in_region(MemoryRegion.shared_hbm)]


def _written(program: Program) -> np.ndarray:
    """bool [buffers]: those that some instruction of one core writes."""
    most = max((len(template.operands) for template in program.templates), default=0)
    writes = np.zeros((len(program.templates), most), bool)
    for number, template in enumerate(program.templates):
        for position, operand in enumerate(template.operands):
            writes[number, position] = operand.access != "r"
    found = np.zeros(len(program.allocations), np.bool_)
    for position in np.flatnonzero(writes.any(axis=0)).tolist():
        rows = writes[program.template_ids, position]
        found[program.operand_data[program.operand_starts[:-1][rows] + position, 0]] = True
    return found


def _compile_error(failure: bytes, finished: sandbox.Finished) -> CompileError:
    """What the worker left; only ever a failure, so the candidate gains nothing by forging it."""
    try:
        said = json.loads(failure)
        line = said["line"]
        known = type(line) is int and 0 < line <= _LAST_LINE  # whoever wrote it may have been the candidate
        return CompileError(str(said["message"])[:4000], line if known else None)
    except (ValueError, KeyError, TypeError, RecursionError):
        tail = finished.output.strip().splitlines()[-1:] or ["no output"]
        status = finished.status or 0
        signal_number = -status if status < 0 else status - 128 if status > 128 else 0
        how = f"signal {signal_number}" if signal_number else f"exit status {status}"
        return CompileError(f"the compiling process died ({how}): {tail[0][:300]}")
