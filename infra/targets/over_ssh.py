"""Another machine as a target: the judge is shipped there, runs there detached, and its result comes back.

Faults of the candidate are Evaluations; faults of the machine are TargetErrors of one line. A dropped link is neither:
it is waited out, and the judge meanwhile goes on. After `close`, Ctrl-C or a timeout nothing is left running there.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from accelopt_core.evaluation import CompilersOwn, Crashed, Evaluation, Step, TimedOut
from accelopt_core.ports import (
    EvaluationRequest,
    Progress,
    TargetError,
    TargetInfo,
    TargetMisconfigured,
    TargetUnreachable,
)
from accelopt_core.task import DEFAULT_LANGUAGE
from accelopt_core.toolchain import Calibration
from infra import doctor
from infra.calibration.file import CalibrationOf
from infra.devices.share import CORES_VARIABLE, PATIENCE_S, WAIT_VARIABLE
from infra.journal import utc_now
from infra.judging import wire
from infra.judging.limits import judge_limit_s
from infra.judging.shipment import TREE, files_to_ship
from infra.languages.registry import supported
from infra.runs.mended_links import MendedLinks
from infra.ssh.config import SshSettings
from infra.ssh.host_keys import Terminal
from infra.ssh.job_records import JobRecord, JobRecords, request_key
from infra.ssh.runner import JOB_DIR, JobSpec, RemoteJob, RemoteTree, SshRunner
from infra.ssh.sessions import Sessions
from infra.ssh.stream import JobRefused

KEEP_DAYS = 7.0
_COLLECTED = ("result.json",)
_RESULT_LIMIT_BYTES = 64 << 20
_STOP_PATIENCE_S = 15.0
_DOCTOR_LIMIT_S = 900.0
_DOCTOR_CORE_WAIT_S = 60.0


@dataclass(frozen=True)
class _Station:
    """What one session has set up on the host."""

    python: str
    tree: RemoteTree
    references: str
    """Folder in which the judge keeps reference outputs, of this session only."""


class _Dated(Protocol):
    @property
    def unix_time_s(self) -> float: ...


_Report = TypeVar("_Report", bound=_Dated)


class SshTarget:
    """`ubuntu@10.0.0.1` or an alias of ~/.ssh/config: with a device, or any machine with `remote_simulator`."""

    def __init__(
        self,
        destination: str,
        *,
        machine: str,
        language: str = DEFAULT_LANGUAGE,
        remote_simulator: bool = False,
        remote_python: str | None = None,
        settings: SshSettings | None = None,
        root: str = "~/.nki-optimizer",
        terminal: Terminal | None = None,
        cores: Sequence[int] = (),
        core_wait_s: float = PATIENCE_S,
        calibration: Calibration | None = None,
        calibration_of: CalibrationOf = lambda machine, installed: None,
    ) -> None:
        """machine: which is simulated there with `remote_simulator`; a device says itself what it is.
        language: that the kernels are written in (`Language.key`).
        cores: those of the host that may be used, one candidate on each; a simulated one only has to be counted.
        calibration: of the machine that is simulated there; calibration_of: finds a device's own, once it has said what
        it is.
        core_wait_s: how long an evaluation waits there for a core, or for its turn to be timed, while others have it.
        """
        self._toolchain = "simulator" if remote_simulator else "auto"
        self._language = language
        self._needs = supported(language).host
        self._machine = machine
        self._calibration = calibration
        self._calibration_of = calibration_of
        self._python = remote_python
        self._cores = tuple(cores)
        self._core_wait_s = core_wait_s
        self._runner = SshRunner(destination, settings, python=remote_python or "python3", root=root, terminal=terminal)
        self._session = secrets.token_hex(8)
        self._cache_key = secrets.token_hex(32)
        self._records: JobRecords | None = None
        self._sessions: Sessions | None = None
        self._station: _Station | None = None
        self._station_lock = threading.Lock()
        self._info: TargetInfo | None = None
        self._running: dict[str, RemoteJob] = {}
        self._closing = False
        self.clock_skew_s: float | None = None
        """How far ahead the other machine's clock is, as of the last `examine`; the way back counts as nothing."""

    @property
    def name(self) -> str:
        return self._runner.where

    @property
    def width(self) -> int:
        return max(1, len(self._cores))

    def remember_in(self, folder: Path) -> None:
        """Keep there what is under way and which links were mended, and collect what an earlier process has left."""
        self._records = JobRecords(folder, self._runner.where, self._runner.root, keep_days=KEEP_DAYS)
        self._sessions = Sessions(folder, self._runner.where, self._runner.root)
        links = MendedLinks(folder)
        self._runner.on_mended = lambda away_s: links.add(self._runner.where, away_s)

    def owes(self, request: EvaluationRequest) -> bool:
        """An earlier process began this very evaluation here and did not live to see its end."""
        return self._records is not None and self._records.owes(self._key(request))

    def describe(self) -> TargetInfo:
        if self._info is None:
            self._info = self._ask_judge(self._set_up())
            self._calibration = self._info.calibration
        return self._info

    def describe_again(self) -> TargetInfo:
        """After a time out of reach, when anything may be different over there. One try to connect."""
        self._runner.connect()
        with self._station_lock:
            self._station = None
        self._info = None
        return self.describe()

    def clean(self, owed: Sequence[str], *, remove: bool) -> list[dict[str, Any]]:
        """As `SshRunner.clean`: nothing is sent there and no SDK is needed. Raises TargetError."""
        return self._runner.clean(owed, remove=remove)

    def examine(self) -> doctor.DoctorReport:
        """What works on that machine, found out there; also where it has no SDK, if it can simulate at least."""
        return self.examine_by("infra.doctor", doctor.from_printed, "run setup_trn2.sh there")

    def checklist(self) -> str:
        """What `setup_trn2.sh --check` finds on a machine without a Python for us. Raises TargetError."""
        script = (TREE / "setup_trn2.sh").read_text(encoding="utf-8")
        answer = self._runner.run(["bash", "-c", script, "setup_trn2.sh", "--check"], timeout_s=_DOCTOR_LIMIT_S)
        return answer.stdout.decode("utf-8", "replace").strip()

    def examine_by(self, program: str, read: Callable[[str], _Report], remedy: str) -> _Report:
        """As that module of ours finds it there. `read`: what it prints; raises ValueError. `remedy`: where it prints
        nothing that can be read. Raises TargetError."""
        python = self._find_python(sdk=False)
        station = _Station(python, self._runner.put_tree(files_to_ship(self._language), compile_with=python), "")
        answer = self._runner.run(
            [python, "-m", program, "--json", "--machine", self._machine],
            timeout_s=_DOCTOR_LIMIT_S,
            env={**self._environment(station), **self._share(min(self._core_wait_s, _DOCTOR_CORE_WAIT_S))},
            cwd=station.tree.path,
            path_first=self._path(station),
        )
        received = time.time()
        try:
            report = read(answer.stdout.decode("utf-8", "replace"))
        except ValueError as error:
            raise TargetMisconfigured(
                f"the doctor on {self._runner.where} gives no report (status {answer.status}: "
                f"{_last_line(answer.stderr_tail)}); {remedy}"
            ) from error
        self.clock_skew_s = report.unix_time_s - received
        return report

    def compilers_own(self, request: EvaluationRequest) -> CompilersOwn:
        """What the SDK there makes of the task's reference by itself; the candidate of the request is left alone.

        Raises TargetError.
        """
        station = self._set_up()
        task = wire.Job(request, "", self._toolchain, self._machine, "", self._calibration)
        job = self._runner.new_job(
            JobSpec(
                argv=(station.python, "-m", "infra.judging.judge", "--compilers-own", "--job", f"{JOB_DIR}/job.json"),
                timeout_s=judge_limit_s(request) + self._core_wait_s,
                files={"job.json": wire.encode_job(task).encode()},
                env={**self._environment(station), **self._share(self._core_wait_s), "TMPDIR": JOB_DIR},
                path_first=self._path(station),
                cwd=station.tree.path,
            )
        )
        self._running[job.id] = job
        lines: list[str] = []
        try:
            self._check_open()
            self._runner.start_job(job, station.tree)
            lines += self._runner.follow(job)
        except BaseException as error:
            if not isinstance(error, (JobRefused, TargetUnreachable)):
                self._stop(job)
            raise
        finally:
            self._running.pop(job.id, None)
        with contextlib.suppress(TargetUnreachable):
            self._runner.remove(job, patience_s=_STOP_PATIENCE_S)
        try:
            return wire.decode_compilers_own(lines[-1] if lines else "")
        except ValueError:
            said = _last_line(job.outcome.stderr_tail) if job.outcome is not None else "no message"
            return CompilersOwn(None, f"the judge on {self._runner.where} ended without a word on it: {said}")

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        self._tell_notes(progress)
        collected = self._collect(request, progress)
        if collected is not None:
            return collected
        progress(Step.UPLOAD, f"to {self._runner.where}")
        step = Step.UPLOAD
        for last_try in (False, True):
            station = self._set_up()
            self._clear_left_over(station)
            self._tell_notes(progress)
            told = _Relay(progress)
            try:
                return self._evaluate_once(request, station, told)
            except JobRefused as error:
                self._check_open()
                step = told.step or step
                if error.code == "tree_changed":
                    self._station = None
                elif error.code not in ("lost", "no_job"):
                    raise
                if last_try:
                    return Crashed(step, f"twice something destroyed the evaluation over there: {error}")
        raise AssertionError("unreachable: the second try returns or raises")

    def close(self) -> None:
        """End what is being evaluated, in whatever thread, and disconnect. Without a link, time limits do it there."""
        self._closing = True
        with contextlib.suppress(TargetError):
            patient_until = time.monotonic() + _STOP_PATIENCE_S
            while self._running and time.monotonic() < patient_until:
                for job in list(self._running.values()):  # again and again: one may be about to start
                    self._runner.kill(job, remove=True, patience_s=_STOP_PATIENCE_S)
                time.sleep(0.05)
            for record in self._records.left_over() if self._records is not None else ():
                self._runner.kill(_job_of(record), remove=True, patience_s=_STOP_PATIENCE_S)
                self._forget(record)
            if self._station is not None:
                self._runner.discard(self._station.references, patience_s=_STOP_PATIENCE_S)
                if self._sessions is not None:
                    self._sessions.over()
        self._runner.close()

    def _check_open(self) -> None:
        if self._closing:
            raise TargetUnreachable(f"the evaluation on {self._runner.where} was ended by this program")

    # --- setting up -----------------------------------------------------------------------------

    def _set_up(self) -> _Station:
        with self._station_lock:
            if self._station is None:
                python = self._find_python(sdk=True)
                tree = self._runner.put_tree(files_to_ship(self._language), compile_with=python)
                swept = self._runner.sweep(KEEP_DAYS)
                if swept:
                    things = "one thing" if swept == 1 else f"{swept} things"
                    self._runner.notes.append(
                        f"removed {things} from {tree.root} on {self._runner.where} that nobody asked for again"
                    )
                self._station = _Station(python, tree, f"{tree.root}/scratch/{self._session}")
            return self._station

    def _find_python(self, *, sdk: bool) -> str:
        """sdk: it must have what devices need; otherwise one that has is preferred where there is one."""
        candidates = (self._python,) if self._python else self._needs.pythons
        needs = [["numpy"], ["ml_dtypes"]]
        simulator = self._toolchain == "simulator"
        try:
            if not simulator:
                try:
                    return self._runner.find_python(candidates, needs=[*needs, *map(list, self._needs.modules)])
                except JobRefused as error:
                    if sdk or error.code != "no_python":
                        raise
            return self._runner.find_python(candidates, needs=needs)
        except JobRefused as error:
            if error.code != "no_python":
                raise
            remedy = (
                "install numpy and ml_dtypes there, or name a Python that has them with --remote-python"
                if simulator
                else self._needs.remedy
            )
            what = "Python for the simulator" if simulator else self._needs.name
            raise TargetMisconfigured(f"no {what} found ({error}); {remedy}") from error

    def _ask_judge(self, station: _Station) -> TargetInfo:
        simulator = self._toolchain == "simulator"
        answer = self._runner.run(
            [
                station.python,
                "-m",
                "infra.judging.judge",
                "--describe",
                "--language",
                self._language,
                "--toolchain",
                self._toolchain,
                "--machine",
                self._machine,
                *(["--calibration", json.dumps(asdict(self._calibration))] if simulator and self._calibration else []),
            ],
            timeout_s=120.0,
            env=self._environment(station),
            cwd=station.tree.path,
            path_first=self._path(station),
        )
        try:
            said = wire.decode_account(answer.stdout.decode("utf-8", "replace"))
        except TargetMisconfigured as error:
            raise self._misconfigured(str(error)) from None
        except ValueError as error:
            raise TargetMisconfigured(
                f"the judge on {self._runner.where} gives no account of itself (status "
                f"{answer.status}: {_last_line(answer.stderr_tail)}); run "
                f"`orchestrator.py doctor`"
            ) from error
        calibration = self._calibration if simulator else self._calibration_of(said.machine, said.installed)
        return replace(said, name=f"{self._runner.where}, {said.name}", calibration=calibration)

    def _misconfigured(self, message: str) -> TargetMisconfigured:
        hint = (
            ""
            if self._toolchain == "simulator" or "--remote-simulator" in message
            else "; to simulate there instead: --remote-simulator"
        )
        return TargetMisconfigured(f"{self._runner.where}: {message}{hint}")

    def _environment(self, station: _Station) -> dict[str, str]:
        return {"PYTHONPATH": station.tree.path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}

    def _share(self, wait_s: float) -> dict[str, str]:
        """What of the host's cores a judge may take (infra.devices.share)."""
        if self._toolchain == "simulator":
            return {}
        return {CORES_VARIABLE: ",".join(map(str, self._cores)), WAIT_VARIABLE: f"{wait_s:g}"}

    def _path(self, station: _Station) -> tuple[str, ...]:
        return tuple(filter(None, (posixpath.dirname(station.python), self._needs.tools)))

    # --- one evaluation -------------------------------------------------------------------------

    def _evaluate_once(self, request: EvaluationRequest, station: _Station, told: _Relay) -> Evaluation:
        nonce = secrets.token_hex(16)
        task = wire.Job(request, nonce, self._toolchain, self._machine, self._cache_key, self._calibration)
        limit_s = judge_limit_s(request)
        if self._toolchain != "simulator":
            limit_s += self._core_wait_s
        spec = JobSpec(
            argv=(
                station.python,
                "-m",
                "infra.judging.judge",
                "--job",
                f"{JOB_DIR}/job.json",
                "--result",
                f"{JOB_DIR}/result.json",
                "--cache",
                station.references,
            ),
            timeout_s=limit_s,
            files={"job.json": wire.encode_job(task).encode()},
            env={**self._environment(station), **self._share(self._core_wait_s), "TMPDIR": JOB_DIR},
            path_first=self._path(station),
            cwd=station.tree.path,
            collect=_COLLECTED,
            collect_limit_bytes=_RESULT_LIMIT_BYTES,
        )
        job = self._runner.new_job(spec)
        record = JobRecord(
            self._key(request), self._runner.where, self._runner.root, job.id, job.secret, nonce, limit_s,
            utc_now().isoformat(timespec="seconds"),
        )  # fmt: skip
        if self._records is not None:
            self._records.begin(record)  # before it starts: what is not recorded could not be collected
        self._see_through(job, record, told, start=lambda: self._runner.start_job(job, station.tree))
        return self._evaluation_of(job, nonce, limit_s, told.step or Step.UPLOAD)

    def _collect(self, request: EvaluationRequest, progress: Progress) -> Evaluation | None:
        """The result of a job that an earlier process started for the same request, if it is to be had."""
        key = self._key(request)
        record = self._records.take_over(key) if self._records is not None else None
        if record is None:
            return None
        progress(Step.UPLOAD, f"began at {record.began[:19]} on {self._runner.where}, before a restart: collecting it")
        job, told = _job_of(record), _Relay(progress)
        try:
            self._see_through(job, record, told, start=lambda: None)
        except JobRefused as error:
            self._check_open()
            progress(Step.UPLOAD, f"note: nothing to collect, so it begins again: {error}")
            return None
        ended = job.outcome.ended if job.outcome is not None else ""
        if ended != "timeout" and "result.json" not in job.files:
            progress(Step.UPLOAD, f"note: nothing to collect, so it begins again: that job ended with {ended!r}")
            return None
        return self._evaluation_of(job, record.nonce, record.limit_s, told.step or Step.UPLOAD)

    def _see_through(self, job: RemoteJob, record: JobRecord, told: _Relay, start: Callable[[], None]) -> None:
        """Start and follow the job to its end and fetch what it made. Only an unreachable host keeps the record."""
        self._running[job.id] = job
        try:
            self._check_open()
            start()
            for line in self._runner.follow(job):
                told(line)
                if told.step is not None:
                    self._tell_notes(told.progress, told.step)
        except TargetUnreachable:
            raise  # it may go on over there, to be collected by a later start
        except BaseException as error:
            # A refused job is not running; after all else, as Ctrl-C, end it there first.
            if not isinstance(error, JobRefused):
                self._stop(job)
            self._forget(record)
            raise
        finally:
            self._running.pop(job.id, None)
        with contextlib.suppress(TargetUnreachable):  # the result is here; a later sweep removes what is there
            self._runner.remove(job, patience_s=_STOP_PATIENCE_S)
        self._forget(record)

    def _key(self, request: EvaluationRequest) -> str:
        return request_key(request, self._toolchain, self._machine, self._calibration)

    def _forget(self, record: JobRecord) -> None:
        if self._records is not None:
            self._records.over(record)

    def notes(self) -> list[str]:
        """What a person should know of the host, or the way there; each once."""
        taken, self._runner.notes = self._runner.notes, []
        if self._records is not None:
            of_records, self._records.notes = self._records.notes, []
            taken += of_records
        return taken

    def _clear_left_over(self, station: _Station) -> None:
        """What killed runs have set up there; what the host does not remove now, a later evaluation asks for again."""
        if self._sessions is None:
            return
        self._sessions.begin(self._session, station.references)
        for left in self._sessions.left_over():
            try:
                self._runner.discard(left.session.folder)
            except JobRefused:
                continue
            left.file.unlink(missing_ok=True)
            where = f"{left.session.folder} on {self._runner.where}"
            self._runner.notes.append(f"removed {where}, which run {left.run_id} had left there when it was killed")

    def _tell_notes(self, progress: Progress, step: Step = Step.UPLOAD) -> None:
        for note in self.notes():
            progress(step, f"note: {note}")

    def _stop(self, job: RemoteJob) -> None:
        with contextlib.suppress(TargetError):  # out of reach: its own time limit ends it there
            self._runner.kill(job, remove=True, patience_s=_STOP_PATIENCE_S)

    def _evaluation_of(self, job: RemoteJob, nonce: str, limit_s: float, step: Step) -> Evaluation:
        self._check_open()
        outcome = job.outcome
        if outcome is None:
            raise TargetUnreachable(f"job {job.id} on {self._runner.where} was left before its end")
        if outcome.ended == "timeout":
            return TimedOut(step, limit_s)
        if outcome.ended == "exit" and "result.json" in job.files:
            try:
                return wire.decode_result(job.files["result.json"].decode("utf-8", "replace"), nonce=nonce)
            except TargetMisconfigured as error:
                raise self._misconfigured(str(error)) from error
        if outcome.status is not None and outcome.status < 0:
            return Crashed(
                step, f"the judge was killed by signal {-outcome.status}: out of memory, or the candidate did it"
            )
        how = f"status {outcome.status}" if outcome.ended == "exit" else outcome.ended
        raise self._misconfigured(f"the judge ended with {how} and no result: {_last_line(outcome.stderr_tail)}")


def _job_of(record: JobRecord) -> RemoteJob:
    spec = JobSpec((), record.limit_s, collect=_COLLECTED, collect_limit_bytes=_RESULT_LIMIT_BYTES)
    return RemoteJob(record.job, spec, record.secret)


class _Relay:
    """Passes a judge's progress lines on; whatever else it prints is ignored."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.step: Step | None = None

    def __call__(self, line: str) -> None:
        known = wire.decode_progress(line)
        if known is not None:
            self.step = known[0]
            self.progress(*known)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[: wire.LONGEST_DETAIL] if lines else "no message"
