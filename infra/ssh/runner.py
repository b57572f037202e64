"""Files, commands and jobs on one other machine, over one connection that is re-made whenever it drops.

A job runs detached there: it survives a dropped link, a sleeping laptop and a killed client, and nothing it started
survives the job. Starting a job, following it to its end and fetching its files is one SSH command: three round trips.

    with SshRunner("ubuntu@10.0.0.1") as runner:
        tree = runner.put_tree({"program.py": b"print('hello')"}, compile_with="python3")
        job = runner.new_job(JobSpec(("python3", f"{tree.path}/program.py"), timeout_s=60))
        runner.start_job(job, tree)
        for line in runner.follow(job): print(line)
        runner.remove(job)

Errors: TargetUnreachable when there is no connection (see infra.ssh.connection), JobRefused for what the host
will not do. The host needs a POSIX shell and Python 3.8.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn, TypeVar

import paramiko

from accelopt_core.ports import TargetUnreachable
from infra.ssh.config import Endpoint, SshSettings, resolve
from infra.ssh.connection import Connection, ControllingTerminal, Keyring, LinkDropped, LinkNotUp, NoSftp, connect
from infra.ssh.host_keys import Terminal
from infra.ssh.stream import JobRefused, Stream, remote_agent_command, remote_agent_program

JOB_DIR = "{{job-directory}}"
"""Stands for the job's own directory, wherever it occurs in a job's argv or environment."""

_FIRST_BACKOFF_S = 0.25
_LONGEST_BACKOFF_S = 20.0
_LINE_LIMIT_BYTES = 65536
_SHOWN_CHARACTERS = 60
"""Of what a host prints at log-in."""


@dataclass(frozen=True)
class RemoteTree:
    """Files laid out on the host; `digest` covers every byte there, compiled bytecode included."""

    root: str
    path: str
    digest: str


@dataclass(frozen=True)
class JobSpec:
    argv: tuple[str, ...]
    timeout_s: float
    """Kept by the host itself, so that it holds when nobody is connected."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Written into the job's directory before it starts."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Beside a short list of harmless variables (remote_agent.processes._INHERITED) all that the job gets."""
    path_first: tuple[str, ...] = ()
    """Directories put in front of PATH."""
    cwd: str | None = None
    """None: the job's own directory."""
    collect: tuple[str, ...] = ()
    """Files of the job's directory to bring back when it ends."""
    collect_limit_bytes: int = 64 << 20
    stdout_limit_bytes: int = 4 << 20
    """Anything beyond is read and thrown away."""


@dataclass(frozen=True)
class JobOutcome:
    ended: str
    """`exit`; `timeout` or `killed`, and then with all it started; or `cannot_start`."""
    status: int | None
    """Exit status, negative for a signal; None unless `ended` is `exit`."""
    stderr_tail: str
    elapsed_s: float


@dataclass
class RemoteJob:
    """A job under way or over. `files` and `outcome` are there once `follow` has come to its end.

    Made again from the same id, spec and secret, in another process even, it can be followed from the start.
    """

    id: str
    spec: JobSpec
    secret: str
    """What proves that the host's word about the end of the job is its own, and not the job's."""
    outcome: JobOutcome | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    received_bytes: int = 0
    stream: Stream | None = None
    restart: Callable[[], Stream] | None = None
    """Asks for the same job again; set until the host is known to have it."""


@dataclass(frozen=True)
class CommandResult:
    status: int | None
    """Exit status, negative for a signal; None when it ran out of time and was killed."""
    stdout: bytes
    stderr_tail: str
    truncated: bool


T = TypeVar("T")


class SshRunner:
    """One machine. Safe to use from several threads: each request has a channel of its own."""

    def __init__(
        self,
        destination: str,
        settings: SshSettings | None = None,
        *,
        python: str = "python3",
        root: str = "~/.nki-optimizer",
        terminal: Terminal | None = None,
    ) -> None:
        self.settings = settings or SshSettings()
        self._terminal = terminal or ControllingTerminal()
        self._keyring = Keyring(self._terminal)
        self._endpoint = resolve(destination, self.settings)
        self._python = python
        self._root = root
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._was_connected = False
        self._closed = threading.Event()
        self._at_login = b""
        """What the host's log-in shell printed the last time."""
        self._no_sftp = False
        self._dropped_at: float | None = None
        self.notes: list[str] = []
        """For the user, a line each, until somebody takes them."""
        self.on_mended: Callable[[float], None] = lambda away_s: None
        """Told when a link that dropped is back, and after how many seconds."""

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    @property
    def where(self) -> str:
        return self._endpoint.where

    @property
    def root(self) -> str:
        """The work directory there, as it was named."""
        return self._root

    def __enter__(self) -> SshRunner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connect now, and anew: a link that broke may look alive until it is used, and using it would ask again and
        again. Raises TargetUnreachable at the first failure.
        """
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._connected()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- verbs ----------------------------------------------------------------------------------

    def run(
        self,
        argv: Sequence[str],
        timeout_s: float,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        path_first: Sequence[str] = (),
        output_limit_bytes: int = 1 << 20,
    ) -> CommandResult:
        """Run one short command. It may run twice if the link drops in between, so it should be harmless."""

        def attempt() -> CommandResult:
            with self._request(
                {
                    "op": "run",
                    "argv": list(argv),
                    "timeout_s": timeout_s,
                    "env": dict(env or {}),
                    "cwd": cwd,
                    "path_first": list(path_first),
                    "limit": output_limit_bytes,
                }
            ) as stream:
                frame, output = stream.expect("ran")
            return CommandResult(frame["status"], output, frame["stderr"], frame["stdout_bytes"] > len(output))

        return self._persist(attempt)

    def find_python(
        self, candidates: Sequence[str], *, needs: Sequence[Sequence[str]], at_least: tuple[int, int] = (3, 10)
    ) -> str:
        """The first candidate (name, path or glob) recent enough that has one module of each group in `needs`.

        Raises JobRefused("no_python") whose message says what each candidate lacks.
        """
        request = {
            "op": "find_python",
            "candidates": list(candidates),
            "needs": [list(group) for group in needs],
            "modules": [name for group in needs for name in group],
            "at_least": list(at_least),
        }

        def attempt() -> str:
            with self._request(request) as stream:
                return str(stream.expect("python")[0]["path"])

        return self._persist(attempt)

    def put_tree(self, files: Mapping[str, bytes | Path], *, compile_with: str | None = None) -> RemoteTree:
        """Lay `files` out on the host, sending only contents it does not have yet (SFTP, or where there is none the way
        of the request; proved by SHA-256).

        compile_with: a Python there that compiles every .py in advance, so that no job has to.
        """
        contents = {
            _plain(name): (value.read_bytes() if isinstance(value, Path) else value) for name, value in files.items()
        }
        blobs = {hashlib.sha256(data).hexdigest(): data for data in contents.values()}
        manifest = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(contents.items())}
        key = hashlib.sha256(json.dumps([manifest, compile_with]).encode()).hexdigest()[:24]
        layout = {"files": manifest, "key": key, "compile_with": compile_with}
        return self._persist(lambda: self._put_tree(layout, blobs))

    def new_job(self, spec: JobSpec) -> RemoteJob:
        """Name a job before it exists, so that it can be killed whatever happens while it starts."""
        return RemoteJob(f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(6)}", spec, secrets.token_hex(16))

    def start_job(self, job: RemoteJob, tree: RemoteTree | None = None) -> None:
        """Start it, detached. `follow` raises JobRefused("tree_changed") when `tree` is no longer what was sent."""
        spec = job.spec
        request = {
            "op": "job_start",
            "job": job.id,
            "secret": job.secret,
            "argv": list(spec.argv),
            "job_dir_word": JOB_DIR,
            "env": dict(spec.env),
            "path_first": list(spec.path_first),
            "cwd": spec.cwd,
            "timeout_s": spec.timeout_s,
            "stdout_limit": spec.stdout_limit_bytes,
            "offset": 0,
            "collect": list(spec.collect),
            "collect_limit": spec.collect_limit_bytes,
            "files": [[_plain(name), len(data)] for name, data in spec.files.items()],
            "tree": {"path": tree.path, "digest": tree.digest} if tree else None,
        }
        payload = b"".join(spec.files.values())
        job.restart = lambda: self._request(request, payload)
        job.stream = self._persist(job.restart)

    def follow(self, job: RemoteJob) -> Iterator[str]:
        """The job's lines of standard output, until it is over; drops of the link in between are bridged.

        Afterwards `job.outcome` and `job.files` are set. Raises JobRefused("lost") when the host no longer knows
        the job, TargetUnreachable when the link does not come back, or the host says nothing on it, for
        `reconnect_for_s`.
        """
        partial, unheard_since = b"", math.inf
        while job.outcome is None:
            if job.stream is None:
                # Until the host has spoken of the job it may not have it; asking again cannot start it twice.
                job.stream = self._persist(
                    job.restart
                    or (
                        lambda: self._request(
                            {
                                "op": "job_follow",
                                "job": job.id,
                                "secret": job.secret,
                                "offset": job.received_bytes,
                                "collect": list(job.spec.collect),
                                "collect_limit": job.spec.collect_limit_bytes,
                            }
                        )
                    )
                )
            stream = job.stream
            try:
                for data in self._listen(job, stream):
                    *lines, partial = (partial + data).split(b"\n")
                    partial = partial[-_LINE_LIMIT_BYTES:]
                    yield from (line.decode("utf-8", "replace") for line in lines)
            except LinkDropped as error:
                stream.close()
                if job.stream is stream:
                    job.stream = None
                now = time.monotonic()
                unheard_since = now if stream.greeted else min(unheard_since, now)
                if now - unheard_since > self.settings.reconnect_for_s:
                    raise TargetUnreachable(
                        f"gave up after {self.settings.reconnect_for_s:g} s: {self.where} takes connections and says "
                        f"nothing within {self.settings.silence_limit_s:g} s ({error})"
                    ) from error
        if partial:
            yield partial.decode("utf-8", "replace")

    def kill(self, job: RemoteJob, *, remove: bool = False, patience_s: float | None = None) -> None:
        """End the job and everything it started; returns when they are gone.

        patience_s: how long to wait for a dropped link, if not as long as for everything else.
        """
        self._simple({"op": "job_kill", "job": job.id, "remove": remove}, "done", patience_s)
        stream, job.stream = job.stream, None
        if stream is not None:
            stream.close()

    def collect(self, job: RemoteJob, name: str, *, limit_bytes: int = 64 << 20) -> bytes:
        """A file of the job's directory. Raises JobRefused("no_file" or "too_large")."""
        if name in job.files:
            return job.files[name]

        def attempt() -> bytes:
            with self._request(
                {"op": "job_collect", "job": job.id, "name": _plain(name), "limit": limit_bytes}
            ) as stream:
                return stream.expect("file")[1]

        return self._persist(attempt)

    def remove(self, job: RemoteJob, *, patience_s: float | None = None) -> None:
        """Forget the job and its files. Costs no round trip when it has just been followed to its end."""
        stream, job.stream = job.stream, None
        if job.outcome is not None and stream is not None and stream.tell(b"remove\n"):
            return
        self._simple({"op": "job_kill", "job": job.id, "remove": True}, "done", patience_s)

    def sweep(self, older_than_days: float) -> int:
        """Remove what nobody has touched for so long, running jobs excepted; returns how many things."""
        return int(self._simple({"op": "sweep", "older_than_s": older_than_days * 86400}, "swept")["removed"])

    def clean(self, owed: Sequence[str], *, remove: bool) -> list[dict[str, Any]]:
        """What our jobs left there, as `remote_agent.leftovers.LeftOver.document` has it; removed unless kept.

        `owed`: names of jobs that some run will ask for again.
        """
        request = {"op": "clean", "owed": list(owed), "remove": remove}
        return list(self._simple(request, "cleaned")["found"])

    def discard(self, path: str, *, patience_s: float | None = None) -> None:
        """Remove a file or directory below the work directory's `scratch`."""
        self._simple({"op": "discard", "path": path}, "done", patience_s)

    def ask(self, request: Mapping[str, Any], last: str, payload: bytes = b"") -> list[tuple[dict[str, Any], bytes]]:
        """One request of the remote agent's that does the same when it comes twice: its files, then the frame `last`.

        For operations that have a client of their own; raises JobRefused and TargetUnreachable.
        """

        def attempt() -> list[tuple[dict[str, Any], bytes]]:
            answer: list[tuple[dict[str, Any], bytes]] = []
            with self._request(dict(request), payload) as stream:
                while not answer or answer[-1][0]["frame"] != last:
                    answer.append(stream.expect("file", last))
            return answer

        return self._persist(attempt)

    # --- how ------------------------------------------------------------------------------------

    def _put_tree(self, layout: Mapping[str, Any], blobs: Mapping[str, bytes]) -> RemoteTree:
        with self._request({"op": "tree_prepare", **layout}) as stream:
            frame, _ = stream.expect("missing", "tree")
        if frame["frame"] == "missing":
            shas = [sha for sha in frame["shas"] if sha in blobs]
            pack = b"".join(blobs[sha] for sha in shas)
            if frame["free_bytes"] < 3 * len(pack) + (8 << 20):
                raise JobRefused(
                    "disk_full",
                    f"{self.where} has {frame['free_bytes'] >> 20} MB free under {frame['root']}; make room there",
                )
            name = None if self._no_sftp else f"{secrets.token_hex(8)}.pack"
            if name is not None:
                try:
                    self._upload(f"{frame['root']}/incoming/{name}", pack)
                except NoSftp as error:
                    self._go_without_sftp(error)
                    name = None
            index = [[sha, len(blobs[sha])] for sha in shas]
            receive = {"op": "tree_receive", **layout, "pack": name, "index": index}
            with self._request(receive, pack if name is None else b"") as stream:
                frame, _ = stream.expect("tree")
        return RemoteTree(frame["root"], frame["path"], frame["digest"])

    def _upload(self, path: str, data: bytes) -> None:
        connection = self._connected()
        try:
            with connection.sftp() as client, client.open(path + ".part", "wb") as stream:
                stream.set_pipelined(True)
                stream.write(data)
                stream.close()
                client.posix_rename(path + ".part", path)
        except (paramiko.SSHException, EOFError, TimeoutError) as error:
            self._drop(connection, error)
        except OSError as error:
            if not connection.alive:
                self._drop(connection, error)
            raise JobRefused(
                "upload",
                f"{self.where} does not take {len(data)} bytes at {path} "
                f"({error.strerror or error}); check its disk space and permissions",
            ) from error

    def _go_without_sftp(self, error: NoSftp) -> None:
        """From here on files go the way that requests go, past whatever is printed at log-in."""
        self._no_sftp = True
        printed = " ".join(self._at_login.decode("utf-8", "replace").split())
        if not printed:
            self.notes.append(f"{self.where} has no working SFTP ({error}): files go through its log-in shell instead")
            return
        shown = printed if len(printed) <= _SHOWN_CHARACTERS else printed[: _SHOWN_CHARACTERS - 1] + "…"
        self.notes.append(
            f"{self.where} prints {shown!r} at log-in, from ~/.bashrc or another start-up file of its shell, into SFTP "
            "too: files go through the shell instead; print it there for terminals only ([ -t 1 ] && ...)"
        )

    def _listen(self, job: RemoteJob, stream: Stream) -> Iterator[bytes]:
        while True:
            frame, payload = stream.expect("started", "out", "file", "unreadable", "over")
            job.restart = None
            if frame["frame"] == "started":
                continue
            if frame["frame"] == "out":
                job.received_bytes += len(payload)
                yield payload
            elif frame["frame"] == "file":
                job.files[frame["name"]] = payload
            elif frame["frame"] == "unreadable":
                job.unreadable[frame["name"]] = frame["message"]
            else:
                ending = frame["outcome"]
                job.outcome = JobOutcome(ending["ended"], ending["status"], ending["message"], ending["elapsed_s"])
                return

    def _simple(self, request: dict[str, Any], answer: str, patience_s: float | None = None) -> dict[str, Any]:
        def attempt() -> dict[str, Any]:
            with self._request(request) as stream:
                return stream.expect(answer)[0]

        return self._persist(attempt, patience_s)

    def _request(self, request: dict[str, Any], payload: bytes = b"") -> Stream:
        """Send one request; the answer is read from the stream."""
        token = secrets.token_hex(16)
        body = json.dumps(
            {**request, "root": self._root, "token": token, "heartbeat_s": self.settings.silence_limit_s / 4}
        ).encode()
        connection = self._connected()
        channel = connection.execute(remote_agent_command(self._python))
        stream = Stream(
            channel, token.encode(), self.where, self._python, lambda error: self._drop(connection, error), self._heard
        )
        stream.send(remote_agent_program() + b"%010d" % len(body) + body + payload)
        return stream

    def _heard(self, noise: bytes) -> None:
        self._at_login = noise

    def _connected(self) -> Connection:
        with self._lock:
            if self._closed.is_set():
                raise TargetUnreachable(f"the connection to {self.where} was closed by this program")
            if self._connection is not None and not self._connection.alive:
                self._connection.close()
                self._connection = None
                self._note_drop()
            if self._connection is None:
                self._connection = connect(self._endpoint, self.settings, self._keyring, self._terminal)
                self._was_connected = True
                if self._dropped_at is not None:
                    away_s, self._dropped_at = time.monotonic() - self._dropped_at, None
                    self.notes.append(f"the link to {self.where} dropped, and was back after {away_s:.0f} s")
                    self.on_mended(away_s)
            return self._connection

    def _note_drop(self) -> None:
        if self._dropped_at is None and self._was_connected:
            self._dropped_at = time.monotonic()

    def _drop(self, connection: Connection, error: BaseException) -> NoReturn:
        # A link that is silent may look alive for a long time: the next request must not use it.
        connection.close()
        self._note_drop()
        raise connection.dropped(error) from error

    def _persist(self, attempt: Callable[[], T], patience_s: float | None = None) -> T:
        """Repeat `attempt` over a new connection while the link is at fault, with growing pauses, for a limited time.

        The very first connection gets one try only: then it is more likely the address that is wrong.
        """
        patience_s = self.settings.reconnect_for_s if patience_s is None else patience_s
        deadline = time.monotonic() + patience_s
        pause_s = _FIRST_BACKOFF_S
        while True:
            try:
                return attempt()
            except (LinkDropped, LinkNotUp) as error:
                if not self._was_connected:
                    raise
                if time.monotonic() + pause_s > deadline:
                    raise TargetUnreachable(f"gave up after {patience_s:g} s: {error}") from error
            self._closed.wait(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_BACKOFF_S)


def _plain(name: str) -> str:
    """A relative POSIX path that stays below its base. Raises ValueError otherwise."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or str(path) != name or ".." in path.parts or "\0" in name:
        raise ValueError(f"'{name}' is not a plain relative path")
    return name
