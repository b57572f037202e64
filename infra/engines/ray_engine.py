"""A Ray cluster as an engine: commands wait for a CPU of it, and go where one is free.

What speaks to the cluster is a process of its own (`ray_driver.py`). It ends with the head, or with the node that it is
attached to; then it is started again until the cluster is back, and what had no answer is submitted anew. What has an
answer is in the run's own folder, and nothing is asked twice.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import queue
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy

from accelopt_core.ports import TargetMisconfigured, TargetUnreachable
from infra.engines.at_node import is_last
from infra.engines.engine import ANYWHERE, NOTE, ON, TRIES, Command, Completed, Node, OnLine, Placement, Service
from infra.engines.processes import LAST_WORDS, last_line
from infra.isolation.sandbox import kill_group, scrubbed_environment
from infra.judging.shipment import TREE, files_to_ship
from infra.scratch_folder import ScratchFolder

HOW_TO_INSTALL = "`pip install 'nki-optimizer[ray]'`, or in a clone `.venv/bin/pip install -e '.[ray]'`"
PATIENCE_S = 600.0
"""How long a cluster may be out of reach, or without a CPU, or without room in its object store."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 10.0
_READY_S = 90.0
"""For the driver to find a cluster, or to say that there is none."""
_QUESTION_LIMIT_S = 3600.0
"""A process that stays has limits of its own; this one is for a node that hangs."""


def ray_is_installed() -> bool:
    return importlib.util.find_spec("ray") is not None


class RayEngine:
    """A cluster that this machine is a node of."""

    def __init__(self, address: str, *, patience_s: float = PATIENCE_S, sent: Bundle | None = None) -> None:
        """address: `auto` for the one that this machine is in, or HOST:PORT of its head.
        sent: to its nodes, if not this very tree.

        Raises TargetMisconfigured where Ray is not installed.
        """
        if not ray_is_installed():
            raise TargetMisconfigured(f"--engine ray needs Ray, which is not installed here: {HOW_TO_INSTALL}")
        self._address = address
        self._patience_s = patience_s
        self._scratch = ScratchFolder("nki-ray-")
        self._setup = sent or bundle()
        self._bundle = self._scratch.path / "bundle.tar"
        self._bundle.write_bytes(self._setup.data)
        self._lock = threading.Lock()
        self._driver: _Driver | None = None
        self._closed = False
        self.tell: Callable[[str], object] = lambda line: None
        """Told that the cluster is out of reach, and that it is back, once each."""
        self._is_away = False

    @property
    def name(self) -> str:
        """For people."""
        return "Ray" if self._address == "auto" else f"Ray at {self._address}"

    @property
    def places(self) -> int:
        return max(1, self._attached(lambda line: None).places)

    @property
    def neuron_cores(self) -> int:
        """Of all nodes together. Raises TargetError."""
        return self._attached(lambda line: None).neuron_cores

    def begin(self) -> None:
        self._attached(lambda line: None)

    def nodes(self) -> tuple[Node, ...]:
        """Those that are there now. Raises TargetError."""
        said = self._answered({"nodes": True}, lambda line: None)
        return tuple(Node(**node) for node in said["nodes"])

    def carry_out(self, command: Command, on_line: OnLine, placement: Placement = ANYWHERE) -> Completed:
        message = {"command": asdict(command), "limit_s": command.limit_s}
        where: dict[str, str] = {}
        said = self._answered(_request(message, placement), on_line, where)
        place: dict[str, Any] = {name: where.get(name, "") for name in ("node", "where", "versions")}
        if "end" in said:
            return replace(Completed(**said["end"]), **place)
        if "overdue" in said:
            return Completed(
                None, None, "it hung, and so did what should have ended it", True, command.limit_s, **place
            )
        return Completed(None, None, str(said["lost"]), False, 0.0, **place)

    def open(self, what: str, argv: tuple[str, ...], first: Mapping[str, Any]) -> Service:
        return _RayAsker(self, {"what": what, "argv": list(argv), "first": dict(first)})

    def answer(self, question: Mapping[str, Any], stopped: threading.Event) -> dict[str, Any]:
        """Of whichever node is free. Raises TargetError, also once `stopped` is set."""
        message = {"question": question, "limit_s": _QUESTION_LIMIT_S}
        said = self._answered({"message": message}, lambda line: None, stopped=stopped)
        if "answer" in said:
            answer: dict[str, Any] = said["answer"]
            return answer
        raise TargetMisconfigured(f"{question['what']} on {self.name}: {said.get('lost', 'hangs')}")

    def close(self) -> None:
        self._closed = True
        driver = self._driver
        if driver is not None:
            driver.end()
        self._scratch.close()

    # --- until there is an answer -------------------------------------------------------------------

    def _answered(
        self,
        request: dict[str, Any],
        on_line: OnLine,
        where: dict[str, str] | None = None,
        stopped: threading.Event | None = None,
    ) -> dict[str, Any]:
        """The last line of it. What was lost with a node or with the head is submitted again; a worker that dies
        under it three times, no more: then `lost` is what is said."""
        lost, waited = 0, _Waiting(self._patience_s)
        while True:
            driver = self._attached(on_line)
            last: dict[str, Any] = {"gone": "it said nothing"}
            for said in driver.ask(request, self._patience_s, stopped):
                if "started" in said:
                    waited.over()
                    if where is not None:
                        where.update(said["started"])
                    on_line(f"{NOTE}{ON}{said['started']['where']}\n")
                elif "line" in said:
                    on_line(said["line"])
                else:
                    last = said
            self._check_open()
            if "gone" in last:
                on_line(f"{NOTE}{self.name} is out of reach: {last['gone']}; it is submitted again\n")
                self._away(str(last["gone"]))
                self._forget(driver)
            elif "full" in last and last["full"]:
                waited.begin(f"{self.name}: {last.get('lost') or last.get('failed')}")
                on_line(f"{NOTE}{last.get('lost')}; it is submitted again\n")
                waited.rest()
            elif "stopped" in last:
                raise TargetUnreachable(f"{self.name}: nobody waits for the answer any more")
            elif "waited" in last:
                raise TargetUnreachable(f"{self.name} has had no place for {self._patience_s:g} s: {last['waited']}")
            elif "refused" in last or "failed" in last:
                raise TargetMisconfigured(f"{self.name}: {last.get('refused') or last['failed']}")
            elif "lost" in last:
                lost += 1
                if lost == TRIES:
                    return last
                on_line(f"{NOTE}its worker is lost ({last['lost']}); it is submitted again\n")
            else:
                return last

    def _attached(self, on_line: OnLine) -> _Driver:
        """Raises TargetUnreachable after `patience_s` without a cluster."""
        with self._lock:
            if self._driver is None or not self._driver.is_there:
                again = self._driver is not None
                self._driver = None
                self._driver = self._started(again, on_line)
            return self._driver

    def _started(self, again: bool, on_line: OnLine) -> _Driver:
        """again: there was a cluster, so it is waited for."""
        until = time.monotonic() + (self._patience_s if again else 0.0)
        wait_s = _FIRST_WAIT_S
        while True:
            self._check_open()
            driver = _Driver(
                self._address, self._bundle, self._setup.key, self._setup.python, self._setup.numpy, self._away
            )
            self._driver = driver  # so that it is ended where this engine is closed meanwhile
            why = driver.wait_until_ready()
            if why is None:
                self._away("")
                return driver
            driver.end()
            if time.monotonic() >= until:
                raise TargetUnreachable(
                    f"{self.name} is out of reach: {why}; is it started (`ray start --head`), and is this machine a "
                    "node of it?"
                )
            on_line(f"{NOTE}{self.name} is not back yet\n")
            time.sleep(min(wait_s, max(0.0, until - time.monotonic())))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _away(self, why: str) -> None:
        """why: empty once it is there again."""
        if bool(why) != self._is_away and not self._closed:
            self._is_away = bool(why)
            waits = f"is out of reach: {why}; it is waited for, {self._patience_s:g} s at most"
            self.tell(f"{self.name} {waits if why else 'is back'}")

    def _forget(self, driver: _Driver) -> None:
        with self._lock:
            driver.end()

    def _check_open(self) -> None:
        if self._closed:
            raise TargetUnreachable(f"{self.name}: the run has ended, and what it had submitted with it")


class _RayAsker:
    """Whichever node is free: each has such a process, or starts one."""

    is_one_process = False

    def __init__(self, engine: RayEngine, question: dict[str, Any]) -> None:
        self._engine = engine
        self._question = question
        self._stopped = threading.Event()

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        return self._engine.answer({**self._question, "job": dict(job)}, self._stopped)

    def close(self) -> None:
        """Ends what is asked; the processes end with the workers of this run."""
        self._stopped.set()


@dataclass
class _Waiting:
    """How long one request has been waiting for what is not its own fault."""

    patience_s: float
    _since: float | None = None
    _wait_s: float = _FIRST_WAIT_S

    def begin(self, why: str) -> None:
        """Raises TargetUnreachable once patience is over."""
        if self._since is None:
            self._since = time.monotonic()
        if time.monotonic() - self._since > self.patience_s:
            raise TargetUnreachable(f"{why}: for {self.patience_s:g} s")

    def rest(self) -> None:
        time.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)

    def over(self) -> None:
        self._since = None
        self._wait_s = _FIRST_WAIT_S


@dataclass
class _Places:
    """What the driver last said of the cluster."""

    cpus: int = 0
    neuron_cores: int = 0
    none_since: float | None = None
    known: threading.Event = field(default_factory=threading.Event)


class _Driver:
    """One process that is attached to the cluster; gone for good once it ends."""

    def __init__(
        self, address: str, bundle: Path, key: str, python: str, numpy: str, away: Callable[[str], object]
    ) -> None:
        """away: told why the cluster says nothing, and nothing where it does again."""
        self._away = away
        self._errors_path = bundle.with_name("driver.log")
        errors: IO[bytes]
        with open(self._errors_path, "wb") as errors:  # whatever Ray prints is not for the terminal
            self._process = subprocess.Popen(
                [sys.executable, "-m", "infra.engines.ray_driver", address, str(bundle), key, python, numpy],
                cwd=TREE, env=scrubbed_environment(_ray_environment()),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,  # Ctrl-C is for the run, which ends it itself
            )  # fmt: skip
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._first: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._places = _Places()
        self._gone = ""
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def is_there(self) -> bool:
        return not self._gone

    @property
    def places(self) -> int:
        self._places.known.wait(_READY_S)
        return self._places.cpus

    @property
    def neuron_cores(self) -> int:
        self._places.known.wait(_READY_S)
        return self._places.neuron_cores

    def wait_until_ready(self) -> str | None:
        """None, or why it is not."""
        try:
            return self._first.get(timeout=_READY_S)
        except queue.Empty:
            return f"no answer in {_READY_S:g} s"

    def ask(
        self, request: dict[str, Any], patience_s: float, stopped: threading.Event | None
    ) -> Iterator[dict[str, Any]]:
        """All that is said of it; last `gone` where this process ends first, `waited` where nothing of it has started
        while there was no place for it in so many seconds, and `stopped` once that is set."""
        mine: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = mine
            gone = self._gone or self._write({"id": number, **request})
        if gone:
            yield {"gone": gone}
            return
        started = ended = False
        try:
            while True:
                try:
                    said = mine.get(timeout=1.0)
                except queue.Empty:
                    if stopped is not None and stopped.is_set():
                        yield {"stopped": True}
                        return
                    none_since = self._places.none_since
                    if not started and none_since is not None and time.monotonic() - none_since > patience_s:
                        yield {"waited": "no node of it has a CPU"}
                        return
                    continue
                started = started or "started" in said
                ended = "gone" in said or "nodes" in said or is_last(said)
                yield said
                if ended:
                    return
        finally:
            with self._lock:
                self._waiting.pop(number, None)
                if not ended:
                    self._write({"cancel": number})

    def _write(self, request: dict[str, Any]) -> str:
        """What is wrong, or nothing. Called by who holds the lock."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            return "its driver ended"
        return ""

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:  # a library that prints
                continue
            if "id" in said:
                with self._lock:
                    mine = self._waiting.get(said.pop("id"))
                if mine is not None:
                    mine.put(said)
            elif "places" in said:
                self._places.cpus, self._places.neuron_cores = said["places"], said["neuron_cores"]
                self._places.none_since = None if said["places"] else time.monotonic()
                self._places.known.set()
                self._away("")
            elif "silent" in said:
                self._away(said["silent"])
            else:
                self._first.put(said.get("unreachable"))
        self._process.wait()
        with self._lock:
            self._gone = self._last_words()
            left = list(self._waiting.values())
        self._places.known.set()
        self._first.put(self._gone)
        for mine in left:
            mine.put({"gone": self._gone})

    def _last_words(self) -> str:
        """Of the log that Ray writes: a line that says what happened, if there is one."""
        said = last_line(self._errors_path.read_bytes()) if self._errors_path.exists() else ""
        return said.strip()[:LAST_WORDS] or f"its driver ended with status {self._process.returncode}"

    def end(self) -> None:
        kill_group(self._process.pid)
        self._process.wait()


def _request(message: dict[str, Any], placement: Placement) -> dict[str, Any]:
    return {"message": message, "node": placement.node, "cores": placement.neuron_cores}


def _ray_environment() -> dict[str, str]:
    """What Ray reads (how to authenticate, TLS), and where that lies; nothing of ours, and no key of anybody else."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("RAY_") and name != "RAY_ADDRESS"}
    kept.update({name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ})
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0"}


_STARTED_THERE = ("infra/engines/agent.py", "infra/prediction/worker.py")
"""Beside the judge and the doctor."""


@dataclass(frozen=True)
class Bundle:
    key: str
    """SHA-256 of `data`, in hexadecimal; the same files come to the same."""
    data: bytes
    """A tar archive of files only, uncompressed."""
    python: str
    """Major and minor version that a node must have."""
    numpy: str
    """Major version."""


def bundle() -> Bundle:
    """Of this tree, as it is on disk now."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, path in files_to_ship(also=_STARTED_THERE).items():
            data = path.read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    data = out.getvalue()
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return Bundle(hashlib.sha256(data).hexdigest(), data, python, numpy.__version__.partition(".")[0])
