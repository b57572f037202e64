"""Core leases among real processes: never two holders, whoever is killed, stopped or hostile."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.devices.leases import LEASE_S, LeaseFolder, LeaseUnavailable
from tests.processes import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the device and its driver are Linux only")
FORK = multiprocessing.get_context("fork")
OLD = time.time() - 10 * LEASE_S


@pytest.fixture
def folder(tmp_path: Path) -> LeaseFolder:
    made = LeaseFolder(tmp_path / "shared" / "leases")
    lease = made.take("core-99")
    lease.release()
    return made


def quietly(line: str) -> None:
    pass


def child(work: Callable[[], object]) -> multiprocessing.process.BaseProcess:
    """A process of its own that does this and ends, with status 0 if nothing was raised."""
    process = FORK.Process(target=work, daemon=True)
    process.start()
    return process


def holder(folder: LeaseFolder, name: str = "core-0") -> multiprocessing.process.BaseProcess:
    """A process that holds `name` until it is killed."""
    ready = FORK.Event()

    def hold() -> None:
        assert folder.take(name) is not None
        ready.set()
        time.sleep(600)

    process = child(hold)
    assert ready.wait(PATIENCE_S)
    return process


def kill(process: multiprocessing.process.BaseProcess, reap: bool = True) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    if reap:
        process.join()


@pytest.mark.parametrize("cores", [1, 3])
def test_of_many_processes_no_two_ever_hold_one_core_and_killed_ones_lose_nothing(folder, tmp_path, cores) -> None:
    names = [f"core-{number}" for number in range(cores)]

    def work(number: int) -> None:
        for turn in range(6):
            lease = folder.wait(names, 60, quietly)
            with open(tmp_path / f"witness-{lease.name}", "a") as witness:
                try:
                    fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os._exit(3)
                witness.write(".")
                witness.flush()
                time.sleep(0.002)
                if turn == 4 and number % 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                fcntl.flock(witness, fcntl.LOCK_UN)
                lease.release()

    processes = [child(lambda number=number: work(number)) for number in range(8)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, -signal.SIGKILL] * 4
    taken = sum(path.stat().st_size for path in tmp_path.glob("witness-*"))
    assert taken == 4 * 6 + 4 * 5
    assert len(list(folder.path.iterdir())) <= 2 * (cores + 1), "superseded files are tidied up"


def test_a_stale_lease_is_won_by_one_of_many(folder: LeaseFolder, tmp_path: Path) -> None:
    """All start at the same moment, and none releases."""
    kill(holder(folder))
    start = FORK.Barrier(10)

    def grab() -> None:
        start.wait(PATIENCE_S)
        if folder.take("core-0") is not None:
            (tmp_path / f"won-{os.getpid()}").touch()
        start.wait(PATIENCE_S)  # nobody leaves, and so frees it, before all have tried

    processes = [child(grab) for _ in range(10)]
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 10
    assert len(list(tmp_path.glob("won-*"))) == 1


def test_a_lease_is_exclusive_until_released(folder: LeaseFolder) -> None:
    lease = folder.take("core-0")
    assert lease is not None and folder.take("core-0") is None
    other = folder.take("core-1")
    assert other is not None
    lease.check()
    lease.release()
    lease.release()
    again = folder.take("core-0")
    again.release()
    other.release()


@pytest.mark.parametrize("reap", [True, False], ids=["gone", "a zombie"])
def test_a_killed_holder_frees_its_core_at_once(folder: LeaseFolder, reap: bool) -> None:
    process = holder(folder)
    assert folder.take("core-0") is None
    kill(process, reap)
    assert eventually(lambda: folder.take("core-0") is not None, LEASE_S / 4)
    process.join()


def test_a_stopped_holder_loses_its_core_after_a_while_and_is_told(tmp_path: Path) -> None:
    folder = LeaseFolder(tmp_path / "leases", lease_s=1.0)
    holding, go_on, lost = FORK.Event(), FORK.Event(), FORK.Event()

    def hold() -> None:
        lease = folder.take("core-0")
        time.sleep(1.5)  # longer than a lease: it is renewed
        lease.check()
        holding.set()
        go_on.wait(PATIENCE_S)
        try:
            lease.check()
        except LeaseUnavailable as error:
            assert "core 0 was taken over" in str(error) and "\n" not in str(error)
            lost.set()
        lease.release()

    process = child(hold)
    assert holding.wait(PATIENCE_S) and folder.take("core-0") is None
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    mine = folder.wait(["core-0"], 20, quietly)
    os.kill(process.pid, signal.SIGCONT)
    go_on.set()
    process.join(20)
    assert lost.is_set() and process.exitcode == 0
    mine.check()  # the other one's release took nothing away
    assert folder.take("core-0") is None
    mine.release()


def test_waiting_says_who_holds_what_and_gives_up_in_one_line(folder: LeaseFolder) -> None:
    processes = [holder(folder, "core-0"), holder(folder, "core-1")]
    said: list[str] = []
    with pytest.raises(LeaseUnavailable) as caught:
        folder.wait(["core-0", "core-1"], 1.2, said.append)
    for process in processes:
        assert f"(process {process.pid})" in said[0] and f"(process {process.pid})" in str(caught.value)
        kill(process)
    assert len(said) == 1 and "core 1 by " in said[0]
    assert "\n" not in str(caught.value) and "--cores" in str(caught.value)


def test_all_users_may_take_part_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        lease = LeaseFolder(tmp_path / "a" / "leases").take("core-0")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "a" / "leases").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "a" / "leases" / "core-0.1").stat().st_mode) == 0o644
    lease.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_a_dead_users_core_goes_to_another_user_who_cannot_remove_his_file(tmp_path: Path) -> None:
    folder = LeaseFolder(tmp_path / "leases")
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == "root" and path.stat().st_mode & 0o777 == 0o700:
            path.chmod(0o711)

    def as_user(uid: int) -> None:
        os.setuid(uid)
        lease = folder.take("core-0")
        lease.check()
        os._exit(0)

    for uid in (0, 65533, 65534, 65533):
        process = child(lambda uid=uid: as_user(uid))
        process.join(20)
        assert process.exitcode == 0
    left = {path.name: path.stat().st_uid for path in folder.path.iterdir()}
    assert left == {"core-0.1": 0, "core-0.3": 65534, "core-0.4": 65533}


@pytest.mark.parametrize("kind", ["a file", "a link", "not writable"])
def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "leases"
    if kind == "a file":
        path.write_text("x")
    elif kind == "a link":
        path.symlink_to(tmp_path)
    else:
        path = Path("/proc/leases")
    with pytest.raises(LeaseUnavailable, match="1777") as caught:
        LeaseFolder(path).take("core-0")
    assert "\n" not in str(caught.value)


FREE, HELD = "free", "held until it expires"


def named(**changes: object) -> str:
    """A lease of this very process, with changes."""
    details = {
        "pid": os.getpid(),
        "start": Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19].decode(),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pids": os.readlink("/proc/self/ns/pid"),
    }
    return json.dumps({**details, **changes})


CONTENTS = {
    "of a living process": ({}, HELD),
    "of a recycled process id": ({"start": "1"}, FREE),
    "of a process that is gone": ({"pid": 1 << 22}, FREE),
    "of an earlier boot": ({"boot": "00000000-0000-0000-0000-000000000000"}, FREE),
    "of another container": ({"pids": "pid:[1]", "pid": 1 << 22}, HELD),
    "of an impossible process": ({"pid": -1}, HELD),
    "of every process": ({"pid": 0}, HELD),
    "of a list": ({"pid": [1]}, HELD),
    "of a number too large": ({"pid": 1e300}, HELD),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_a_file_says_frees_a_core_early_or_not_at_all(folder: LeaseFolder, name: str) -> None:
    changes, outcome = CONTENTS[name]
    (folder.path / "core-0.7").write_text(named(**changes))
    assert (folder.take("core-0") is None) is (outcome == HELD)
    (folder.path / "core-0.8").write_text(named(**changes))
    os.utime(folder.path / "core-0.8", (OLD, OLD))
    assert folder.take("core-0") is not None, "nothing a file says holds a core longer than its renewals"


JUNK = {
    "empty": b"", "garbage": os.urandom(900), "nothing but brackets": b"[" * 900,
    "huge": b'{"pid": 1, "start": "' + b"x" * 10_000_000, "not an object": b"7",
    "an infinite number": b'{"pid": Infinity, "start": "", "boot": "", "pids": ""}',
}  # fmt: skip


@pytest.mark.parametrize("name", JUNK)
def test_junk_holds_a_core_only_while_it_is_fresh(folder: LeaseFolder, name: str) -> None:
    path = folder.path / "core-0.7"
    path.write_bytes(JUNK[name])
    assert folder.take("core-0") is None
    for stamp in (OLD, time.time() + 10 * LEASE_S):
        os.utime(path, (stamp, stamp))
        lease = folder.take("core-0")
        lease.release()
        (folder.path / "core-0.7").write_bytes(JUNK[name])


def test_what_is_not_a_file_holds_nothing_and_is_not_touched(folder: LeaseFolder, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    os.utime(mine, (OLD, OLD))
    (folder.path / "core-0.3").symlink_to(mine)
    os.mkfifo(folder.path / "core-1.3")
    (folder.path / "core-2.3").mkdir()
    os.link(mine, folder.path / "core-3.3")
    (folder.path / "core-4.4").symlink_to(tmp_path / "not there")
    for number in range(5):
        lease = folder.take(f"core-{number}")
        lease.release()
    assert mine.read_text() == "precious" and mine.stat().st_mtime == OLD
    assert not (tmp_path / "not there").exists()


def test_names_that_are_none_of_ours_mean_nothing(folder: LeaseFolder) -> None:
    for name in ("core-0", "core-0.x", "core-0.-1", "core-0.5.part", ".core-0.5", "core-01.5 ", "core-0.1" + "0" * 40):
        (folder.path / name).write_text(named())
    assert folder.take("core-0") is not None


def test_a_number_that_has_no_next_is_named(folder: LeaseFolder) -> None:
    (folder.path / f"core-0.{'9' * 12}").write_text("")
    os.utime(folder.path / f"core-0.{'9' * 12}", (OLD, OLD))
    with pytest.raises(LeaseUnavailable, match="core-0.999999999999 is no lease of ours: remove it"):
        folder.take("core-0")
