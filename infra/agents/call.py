"""The process that carries out one call of a tool: a line of JSON in, lines of JSON out, and it ends.

    python -m infra.agents.call

Whoever started it keeps its standard input open: when that ends, this ends too, with all that it started. What is
answered goes to a copy of standard output that nothing else has; whatever else prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from infra.agents import requests
from infra.agents.requests import GRACE_S, TOOLS
from infra.isolation.linux import IsolationUnavailable
from infra.isolation.processes import adopt_orphans, children, hide_this_process
from infra.records import to_document
from infra.tasks.user_files import SHIPPED, Folder, Outside, confine
from nki_sim.commands.documents import finite

if TYPE_CHECKING:
    import config
    from accelopt_core.evaluation import Step
    from accelopt_core.loop.events import Event
    from infra.runs.run_folder import RunFolder

# Each tool imports what it works with, and no other: half of a short call would be loading.

MOST_ENTRIES = 20_000
"""Files of a run's folder that are looked at."""
LIGHT_BYTES = 4 << 30
"""Of memory, for what only reads a kernel's text."""
LIGHT = (requests.Check, requests.FollowRun)


@dataclass(frozen=True)
class Job:
    """One call, as the server hands it over."""

    told: Mapping[str, Any]
    """The server's settings, as a document."""
    folder: Folder
    limit_s: float
    made_from: str | None = None
    """Of a kernel that came of another: that one, whose reference it has."""

    @cached_property
    def settings(self) -> config.Settings:
        """The server's: where kernels are evaluated, with which model, at which cost."""
        import config

        return config.from_document(self.told, "the server's settings")


class Answers:
    """Lines for the server, from several threads."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "w", encoding="utf-8")
        self._lock = threading.Lock()

    def say(self, **what: Any) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):  # nobody listens any more: the watch ends us
            self._file.write(json.dumps(what) + "\n")
            self._file.flush()

    def step(self, step: Step, detail: str) -> None:
        self.say(progress=f"{step.value}: {detail}")


def main() -> int:
    answers = Answers(os.dup(1))
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, _leave)
    with contextlib.suppress(IsolationUnavailable):
        adopt_orphans()  # what a reference leaves behind is ours to end, in whatever session it hides
    said = json.loads(_first_line())
    threading.Thread(target=_end_with_the_server, name="watch", daemon=True).start()
    try:
        status, last = _carried_out(said, answers)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_what_is_left()  # before the answer: with that the server has what it waits for, and asks us to end
    answers.say(**last)
    return status


def _carried_out(said: Mapping[str, Any], answers: Answers) -> tuple[int, dict[str, Any]]:
    """The exit status, and the last line that is to be said."""
    try:
        kind = TOOLS[said["tool"]]
        folder = Folder(Path(said["folder"]))
        os.chdir(folder.path)
        confine(folder.path, *SHIPPED.values())
        request = requests.read(kind, said["arguments"])
        job = Job(said["settings"], folder, float(said["limit_s"]), said["made_from"])
        if kind in LIGHT:
            _limit(job)
        document = to_document(CARRIED_OUT[kind](job, request, answers))
    except (MemoryError, RecursionError) as error:
        return 2, {"error": f"{type(error).__name__}: this kernel's text is too large or too deep to be read"}
    except Exception as error:  # whatever it is, who asked is answered, and a fault of ours says that it is one
        if isinstance(error, _faults()):
            return 2, {"error": _for_agents(str(error))}
        traceback.print_exc()
        return 1, {"error": _for_agents(f"a fault of ours, please report it: {type(error).__name__}: {error}")}
    left_out = LEFT_OUT - {"fields"} if kind is requests.Profile else LEFT_OUT
    return 0, {"document": _brief(finite(document), left_out)}


def _faults() -> tuple[type[Exception], ...]:
    """What is wrong with a call, a kernel or a machine, in one line."""
    from accelopt_core.loop.rounds import BaselineRejected
    from accelopt_core.ports import ModelError, TargetError
    from infra.commands.by_name import USAGE_ERRORS

    return (*USAGE_ERRORS, BaselineRejected, TargetError, ModelError)


# --- ending -----------------------------------------------------------------------------------------


def _first_line() -> bytes:
    """Read without a buffer: what follows is for the watch."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1 << 16)
        if not part:
            break
        line += part
    return line


def _end_with_the_server() -> None:
    """The end of our input means: stop. Asked twice, as a person would, and then no more."""
    while os.read(0, 1 << 16):
        pass
    for patience_s in (GRACE_S, GRACE_S / 4):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(patience_s)
    _end_what_is_left()
    os.kill(os.getpid(), signal.SIGKILL)


def _end_what_is_left() -> None:
    """All that this process started or inherited, until no more turn up."""
    while left := children():
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough, and what is ending must not be stopped halfway
    sys.exit(128 + number)  # by way of every `finally`, which ends what was started


def _limit(job: Job) -> None:
    cpu = max(1, int(job.limit_s) + 1)
    for which, value in ((resource.RLIMIT_AS, LIGHT_BYTES), (resource.RLIMIT_CPU, cpu)):
        _, hard = resource.getrlimit(which)
        if sys.platform == "linux" or which == resource.RLIMIT_CPU:  # macOS does not enforce an address-space limit
            resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


# --- what agents read -------------------------------------------------------------------------------

_PROGRAM = re.compile(r"(?:python3 orchestrator\.py|orchestrator\.py|nki-optimizer) (?=[a-z]+\b)")
_FLAG = re.compile(r"--([a-z]+)[ =](?=\S)")
LEFT_OUT = {"schema", "why_faster", "fields", "min_us", "max_us", "samples", "cores", "target"}
"""What an agent has no use for, or is told elsewhere in the same answer."""
MOST_LINES = {"hot_lines": 5, "gaps": 4, "blocked": 2, "reasons": 3}
"""Of lists that begin with what matters most."""


def _for_agents(text: str) -> str:
    """One line, in words of the tools, not of the command line."""
    return _FLAG.sub(r"\1=", _PROGRAM.sub("", " ".join(text.split())))[:2000]


def _brief(value: Any, left_out: set[str]) -> Any:
    """A document as an agent is given it: numbers of four digits, nothing that is empty."""
    if isinstance(value, float):
        number = float(f"{value:.4g}")
        return int(number) if number.is_integer() else number
    if isinstance(value, list):
        return [_brief(each, left_out) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: each[: MOST_LINES[key]] if key in MOST_LINES else each for key, each in value.items()}
    short = {key: _brief(each, left_out) for key, each in kept.items() if key not in left_out}
    if "said" in short:
        short["said"] = _for_agents(short["said"])
    return {key: each for key, each in short.items() if each not in (None, "", [], {})}


# --- the tools --------------------------------------------------------------------------------------


def _of_a_kernel(job: Job, request: requests.Referenced) -> config.Settings:
    """The server's settings, for this kernel. Raises what is wrong with its files."""
    from infra.tasks.seed_index import find_reference, load_seed

    named = getattr(request, "kernel", None)
    kernel = job.folder.file(named) if named is not None else None
    seed = load_seed(request.task) if request.task is not None else None
    if request.reference is not None:
        problem: Path | None = job.folder.file(request.reference)
    elif seed is None and job.made_from is not None and kernel is not None:
        problem = find_reference(job.folder.file(job.made_from)).reference
    else:
        problem = seed.reference_path if seed is not None and kernel is not None else None
    run = replace(
        job.settings.run, kernel=kernel, problem=problem, task=request.task or job.settings.run.task,
        function=request.function, preset=getattr(request, "preset", None), suite=None, in_place=False, migrate=False,
        resume=None, run_id=None, view="quiet",
    )  # fmt: skip
    return replace(job.settings, run=run)


def _named(request: requests.OfAKernel) -> str:
    return request.kernel or request.task or ""


def _init(job: Job, request: requests.Init, answers: Answers) -> Any:
    import config
    from infra.commands import init

    kernel = job.folder.file(request.kernel)
    run = replace(job.settings.run, kernel=kernel, function=request.function, shape=tuple(request.shapes))
    asked = config.Invocation("init", replace(job.settings, run=run))
    written = init.write_reference(asked, lambda line: answers.say(progress=line), job.folder)
    text = job.folder.read(written.path).decode()
    return {"written": str(written.path.relative_to(job.folder.path)), "said": written.said[0], "text": text}


def _evaluate(job: Job, request: requests.Evaluate, answers: Answers) -> Any:
    from infra.commands import evaluate

    original = job.folder.file(request.original) if request.original is not None else None
    return evaluate.evaluation(_of_a_kernel(job, request), _named(request), answers.step, original)


def _profile(job: Job, request: requests.Profile, answers: Answers) -> Any:
    from infra.commands import profile

    settings = _of_a_kernel(job, request)
    target = replace(settings.target, compile_timeout_s=min(settings.target.compile_timeout_s, job.limit_s))
    return profile.profile(replace(settings, target=target), request.kernel)


def _check(job: Job, request: requests.Check, answers: Answers) -> Any:
    from infra.tasks.kernel_file import kernel_text
    from nki_sim import lint
    from nki_sim.commands.documents import check_document

    source = kernel_text(job.folder.file(request.kernel))
    return check_document(request.kernel, request.nki, lint.check_source(source, request.nki, hints=request.hints))


def _menu(job: Job, request: requests.Menu, answers: Answers) -> Any:
    from infra.commands import menu

    settings = _of_a_kernel(job, request)
    return menu.menu(settings, _named(request), answers.step, limit_s=request.pricing_seconds)


def _try(job: Job, request: requests.TryChange, answers: Answers) -> Any:
    from infra.commands import evaluate, menu
    from infra.tasks.seed_index import load_seed

    settings, named, output = _of_a_kernel(job, request), _named(request), str(request.output)
    menu.change(settings, named, request.tool, request.site, job.folder, output, overwrite=False)
    before = settings.run.kernel or load_seed(named).kernel_path
    made = request.model_copy(update={"kernel": output})
    job = replace(job, made_from=job.made_from or request.kernel)
    judged = evaluate.evaluation(_of_a_kernel(job, made), output, answers.step, before)
    document = {"written": output, "evaluation": to_document(judged)}
    if judged.right and (judged.speedup or 1.0) >= 1.0:
        document["menu"] = to_document(_menu(job, made, answers))
    return document


def _facts(job: Job, request: requests.Facts, answers: Answers) -> Any:
    from accelopt_core.languages.nki.dialect import Dialect
    from accelopt_core.languages.nki.machine_facts import machine_facts
    from accelopt_core.model.prompting import render
    from infra.assembly.targets import machine_of
    from infra.runs.memory_file import MemoryFile
    from nki_sim.machine import machine
    from nki_sim.reference import instruction_list, instruction_text

    about, where = request.about, machine_of(job.settings)
    if about == "memory":
        known = MemoryFile(job.settings.run.memory, lambda line: None).load().experiences
        newest = sorted(known, key=lambda each: each.date)[-40:]
        return {"text": "\n".join(f"- {each.title}: {each.summary}" for each in newest) or "nothing yet"}
    if about == "api":
        text = instruction_list(where) if request.name is None else instruction_text(request.name, where)
        return {"text": text or f"no instruction is called {request.name}: `api` without a name lists all"}
    return {"text": render("nki", f"nki/{about}.j2", machine=machine_facts(machine(where)), dialect=Dialect())}


def _migrate(job: Job, request: requests.Migrate, answers: Answers) -> Any:
    from infra.commands import migrate

    return migrate.migrate(
        _of_a_kernel(job, request), request.kernel, request.shapes, request.constants, job.folder, request.output,
        overwrite=request.overwrite, limit_s=job.limit_s,
    )  # fmt: skip


def _doctor(job: Job, request: requests.Doctor, answers: Answers) -> Any:
    from infra.commands import machines
    from infra.documents.kernel_document import DoctorDocument

    examined = tuple(machines.examined(job.settings, host)[0] for host in job.settings.target.host or ("",))
    return DoctorDocument(all(each.usable for each in examined), examined)


# --- runs -------------------------------------------------------------------------------------------


class _Followed:
    """A run's view: its lines go to standard error, where the server keeps the last; rounds are told as they end."""

    def __init__(self, answers: Answers) -> None:
        from infra.terminal.dashboard import open_view

        self._answers = answers
        self._lines = open_view("plain")

    def tell(self, event: Event) -> None:
        from accelopt_core.loop.events import RoundEnded, RunStarted

        self._lines.tell(event)
        if isinstance(event, RunStarted):
            self._answers.say(started=event.run_id)
        elif isinstance(event, RoundEnded):
            self._answers.say(progress=f"round {event.attempt.round}: {event.attempt.summary}")

    def close(self) -> None:
        self._lines.close()


def _run(answers: Answers, settings: config.Settings, origins: Mapping[str, str]) -> Any:
    import config
    from infra.assembly.following import Following
    from infra.commands import optimize
    from infra.documents.run_document import run_document

    hide_this_process()  # it may have the keys of models in its environment

    def opened(kind: str) -> _Followed:
        return _Followed(answers)

    invocation = config.Invocation("run", settings, origins=origins)
    return run_document(optimize.carried_out(invocation, Following(opened)).summary)


def _start(job: Job, request: requests.StartRun, answers: Answers) -> Any:
    from infra.journal import utc_now
    from infra.runs.run_folder import new_run_id

    settings = _of_a_kernel(job, request)
    name = Path(_named(request)).stem
    run = replace(
        settings.run, run_id=new_run_id(name, utc_now()), rounds=request.rounds, patience=request.patience,
        view="plain", checkpoints=_checkpoints(job),
    )  # fmt: skip
    least = min(request.hours, job.settings.budget.max_hours or request.hours)
    budget = replace(settings.budget, max_hours=least)
    settings = replace(settings, run=run, budget=budget)
    return _run(answers, settings, {"run.kernel": "--kernel", "run.task": "--task"})


OF_THE_RUN = ("kernel", "problem", "function", "task", "preset", "patience")
"""All that a run that is resumed says itself, and its rounds where nobody else does: its folder is not ours alone, and
what would start programs, reach hosts or write elsewhere is as the server was told."""


def _resume(job: Job, request: requests.ResumeRun, answers: Answers) -> Any:
    import config

    folder = _found(job, request.run_id)
    rounds = request.rounds or job.settings.run.rounds
    run = replace(
        job.settings.run, resume=folder.run_id, rounds=rounds, view="plain", suite=None, in_place=False, migrate=False
    )
    kept = {f"run.{name}" for name in (*OF_THE_RUN, *(["rounds"] if request.rounds is None else []))}
    ours = {f"{group}.{each.name}" for group, kind in config.GROUPS.items() for each in fields(kind)} - kept
    return _run(answers, replace(job.settings, run=run), dict.fromkeys(ours, "--resume"))


def _follow(job: Job, request: requests.FollowRun, answers: Answers) -> Any:
    import config
    from infra.documents.run_document import run_document
    from infra.terminal import report

    return run_document(report.summary_of(_found(job, request.run_id or config.LATEST)))


def _checkpoints(job: Job) -> Path:
    """The folder of all runs. Raises Outside where it is below the server's folder, and a link leads out."""
    path = job.settings.run.checkpoints
    return job.folder.place(str(path)) if job.folder.path in path.parents else path


def _found(job: Job, run_id: str) -> RunFolder:
    """Raises Outside where a link in the run's folder could lead elsewhere."""
    from infra.runs.run_folder import RunNotFound, find_run, run_ids

    checkpoints = _checkpoints(job)
    if not run_ids(checkpoints):
        raise RunNotFound("no run in the folder of this server yet: start_run begins one")
    folder = find_run(checkpoints, run_id)
    entries = 0
    for where, folders, files in os.walk(folder.path):
        for name in (*folders, *files):
            entries += 1
            if entries > MOST_ENTRIES or os.path.islink(os.path.join(where, name)):
                raise Outside(f"run {folder.run_id}: its folder holds a link, or more than {MOST_ENTRIES:,} files")
    if folder.path.is_symlink():
        raise Outside(f"run {folder.run_id}: its folder is a link")
    return folder


CARRIED_OUT: dict[type[requests.Request], Callable[[Job, Any, Answers], Any]] = {
    requests.Init: _init, requests.Evaluate: _evaluate, requests.Profile: _profile, requests.Check: _check,
    requests.Menu: _menu, requests.TryChange: _try, requests.Facts: _facts, requests.Migrate: _migrate,
    requests.Doctor: _doctor, requests.StartRun: _start, requests.ResumeRun: _resume, requests.FollowRun: _follow,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
