"""One evaluation, and each thing that can go wrong on its way: the right result, or one line; nothing left anywhere."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CompileFailed, Step
from accelopt_core.ports import TargetError
from infra.ssh import runner
from infra.ssh.connection import Connection, connect
from infra.ssh.runner import SshRunner
from infra.ssh.stream import Stream
from infra.targets import over_ssh as ssh_target
from infra.targets.over_ssh import SshTarget
from tests.processes import eventually
from tests.ssh.server import Sshd, processes_mentioning, simulated_target
from tests.ssh.test_target import DESCRIBE, JUDGE, REQUEST

SOURCE = "the candidate, at length; " * 40_000
"""A megabyte there, and as the message of the verdict six megabytes back: more than one SSH window holds."""
VERDICT = CompileFailed(SOURCE * 6, 3)
JUDGED = """
say("compile and verify", "compiling")
VERDICT["evaluation"]["message"] *= 6
time.sleep(0.7)
finish(VERDICT)
say("benchmark", "finished")
time.sleep(0.3)
"""

At = Callable[[str], None]


@pytest.fixture
def target(sshd: Sshd, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshTarget]:
    """Its judge is a real program that is shipped; its files are large enough to be cut in the middle."""
    (tmp_path / "judge.py").write_text(JUDGE.replace("DESCRIBE", DESCRIBE) + JUDGED)
    (tmp_path / "empty").write_text("")
    (tmp_path / "large").write_bytes(os.urandom(1 << 20))
    judge = {"infra/judging/judge.py": tmp_path / "judge.py", "infra/__init__.py": tmp_path / "empty"}
    files = {**judge, "large": tmp_path / "large"}
    monkeypatch.setattr(ssh_target, "files_to_ship", lambda language: files)
    yield built(sshd, work)
    assert eventually(lambda: not processes_mentioning(str(work))), "nothing runs on over there"


def built(sshd: Sshd, root: Path, **changes: object) -> SshTarget:
    settings = replace(sshd.settings, **changes)  # type: ignore[arg-type]  # fields of SshSettings, by name
    return simulated_target(sshd, root, settings)


def evaluate(target: SshTarget, at: At = lambda moment: None) -> object:
    request = replace(REQUEST, candidate=Candidate("c1", SOURCE))
    return target.evaluate(request, lambda step, detail: at(detail if step is not Step.UPLOAD else ""))


@contextmanager
def before_upload(sshd: Sshd, patch: pytest.MonkeyPatch) -> Iterator[At]:
    sshd.cut()
    yield lambda moment: None


@contextmanager
def before_the_first_upload(sshd: Sshd, patch: pytest.MonkeyPatch) -> Iterator[At]:
    """While the judge's files go over: between the question what is missing and its answer."""
    upload, cuts = SshRunner._upload, iter([True])

    def cutting(self: SshRunner, path: str, data: bytes) -> None:
        if next(cuts, False):
            with sshd.cutting(after_s=0.02):
                while True:  # until the cut is felt
                    upload(self, path, data)
        upload(self, path, data)

    patch.setattr(SshRunner, "_upload", cutting)
    yield lambda moment: None
    assert not next(cuts, False)


@contextmanager
def while_the_candidate_is_sent(sshd: Sshd, patch: pytest.MonkeyPatch) -> Iterator[At]:
    send, cuts = Stream.send, iter([True])

    def cutting(self: Stream, data: bytes) -> None:
        if len(data) > len(SOURCE) and next(cuts, False):
            send(self, data[: len(data) // 2])
            sshd.cut()
            send(self, data[len(data) // 2 :])
        else:
            send(self, data)

    patch.setattr(Stream, "send", cutting)
    yield lambda moment: None
    assert not next(cuts, False)


@contextmanager
def while_compiling(sshd: Sshd, patch: pytest.MonkeyPatch) -> Iterator[At]:
    yield lambda moment: sshd.cut() if moment == "compiling" else None


@contextmanager
def after_finishing(sshd: Sshd, patch: pytest.MonkeyPatch) -> Iterator[At]:
    yield lambda moment: sshd.cut() if moment == "finished" else None


@contextmanager
def during_download(sshd: Sshd, patch: pytest.MonkeyPatch) -> Iterator[At]:
    more, cuts, received = Stream._more, iter([True]), [0]

    def cutting(self: Stream) -> None:
        before = len(self._buffer)
        more(self)
        received[0] += len(self._buffer) - before
        if received[0] > 1 << 20 and next(cuts, False):
            sshd.cut()

    patch.setattr(Stream, "_more", cutting)
    yield lambda moment: None
    assert not next(cuts, False)


@contextmanager
def again_and_again(sshd: Sshd, patch: pytest.MonkeyPatch) -> Iterator[At]:
    over = threading.Event()

    def cut() -> None:
        while not over.wait(0.6):
            sshd.cut()

    thread = threading.Thread(target=cut)
    thread.start()
    threading.Timer(2.5, over.set).start()
    yield lambda moment: None
    over.set()
    thread.join()


@contextmanager
def the_server_restarts(sshd: Sshd, patch: pytest.MonkeyPatch) -> Iterator[At]:
    def restart() -> None:
        sshd.stop()
        time.sleep(1.5)  # the judge ends meanwhile
        sshd.start()

    thread = threading.Thread(target=restart)
    yield lambda moment: thread.start() if moment == "compiling" else None
    thread.join()


@contextmanager
def silence(sshd: Sshd, patch: pytest.MonkeyPatch) -> Iterator[At]:
    """The server's processes freeze: the connection is open, and nothing comes any more."""
    frozen: list[int] = []

    def freeze(moment: str) -> None:
        if moment == "compiling":
            frozen.extend(sshd.connections())
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)

    yield freeze
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    assert frozen


LINK_FAULTS = (
    before_upload, before_the_first_upload, while_the_candidate_is_sent, while_compiling, after_finishing,
    during_download, again_and_again, the_server_restarts, silence,
)  # fmt: skip

RARER = (after_finishing, before_the_first_upload, while_the_candidate_is_sent)
"""The others come by the same ways."""


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=pytest.mark.slow) if fault in RARER else fault for fault in LINK_FAULTS],
    ids=lambda fault: fault.__name__,
)
def test_a_fault_of_the_link_costs_nothing(target, sshd, work, fault, monkeypatch) -> None:
    before = set(threading.enumerate())
    if fault is silence:
        target = built(sshd, work, silence_limit_s=1.5)
    if fault is not before_the_first_upload:
        target.describe()
    with fault(sshd, monkeypatch) as at:  # type: ignore[attr-defined]  # each is a context manager
        result = evaluate(target, at)
    assert result == VERDICT
    target.close()
    assert eventually(lambda: not list((work / "jobs").iterdir()) and not sshd.connections())
    assert eventually(lambda: not set(threading.enumerate()) - before), threading.enumerate()


def another_host_key(sshd: Sshd, work: Path, disk: Path) -> SshTarget:
    kind, blob = (sshd.home / "other_key.pub").read_text().split()[:2]
    (sshd.home / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {kind} {blob}\n")
    return built(sshd, work)


def no_host_key(sshd: Sshd, work: Path, disk: Path) -> SshTarget:
    (sshd.home / "known_hosts").write_text("")
    return built(sshd, work)


def wrong_credentials(sshd: Sshd, work: Path, disk: Path) -> SshTarget:
    (sshd.home / "authorized_keys").write_text("")
    return built(sshd, work)


def no_server(sshd: Sshd, work: Path, disk: Path) -> SshTarget:
    sshd.stop()
    return built(sshd, work)


def not_isolated(sshd: Sshd, work: Path, disk: Path) -> SshTarget:
    return built(sshd, disk / "work")


def no_permission(sshd: Sshd, work: Path, disk: Path) -> SshTarget:
    return built(sshd, Path("/proc/work"))


def gone_for_good(sshd: Sshd, work: Path, disk: Path) -> SshTarget:
    target = built(sshd, work, reconnect_for_s=0.5)
    target.describe()
    sshd.stop()
    return target


LASTING_FAULTS = (
    (another_host_key, "key"),
    (no_host_key, "--accept-new-host-key"),
    (wrong_credentials, "rejected"),
    (no_server, "refused"),
    (not_isolated, "make room"),
    (no_permission, "/proc"),
    (gone_for_good, "gave up"),
)


@pytest.mark.parametrize(("fault", "said"), LASTING_FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_that_lasts_is_one_line(target, sshd, work, small_disk, fault, said) -> None:
    broken = fault(sshd, work, small_disk)
    try:
        with pytest.raises(TargetError, match=said) as caught:
            evaluate(broken)
    finally:
        broken.close()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert eventually(lambda: not sshd.connections())


@pytest.mark.parametrize("noticed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_host_that_was_down_is_asked_once_and_used_again_when_it_is_up(target, sshd, monkeypatch, noticed) -> None:
    before = target.describe()
    tries = []

    def counted(*given: Any) -> Connection:
        tries.append(given)
        return connect(*given)

    monkeypatch.setattr(runner, "connect", counted)
    sshd.stop()
    with monkeypatch.context() as patch, pytest.raises(TargetError):
        if not noticed:
            patch.setattr(Connection, "alive", True)
        target.describe_again()
    assert len(tries) == 1, "nobody waits for it to come back"
    sshd.start()
    assert target.describe_again() == before
    assert evaluate(target) == VERDICT
    target.close()
