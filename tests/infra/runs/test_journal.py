"""Crash-safe files: what is there before a failure is there after it, whatever fails and whoever else writes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

import pytest

from infra.journal import (
    FileLock,
    JournalDamaged,
    JournalDenied,
    JournalError,
    JournalLocked,
    JsonLines,
    make_folder,
    replace_file,
    set_aside,
)
from tests.processes import PATIENCE_S

ROOT = Path(__file__).parents[3]
spawn = multiprocessing.get_context("spawn")


def in_child(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A process of its own, for limits that must not bind this one."""
    argv = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)


LIMITED = """
import resource, sys
from pathlib import Path
from infra.journal import *
path = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # the file system is as good as full
try:
    {call}
except JournalFull as error:
    print(error)
    sys.exit(0)
sys.exit("no error")
"""


def test_a_replaced_file_holds_the_new_content_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, "old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_permissions_and_symbolic_links_outlive_a_replacement(tmp_path: Path) -> None:
    real, link = tmp_path / "real.py", tmp_path / "link.py"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    replace_file(link, "new")
    assert link.is_symlink() and real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_full_disk_leaves_the_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    done = in_child(LIMITED.format(call="replace_file(path, 'x' * 100_000)"), path)
    assert done.returncode == 0, done.stderr
    assert "free some space" in done.stdout and done.stdout.count("\n") == 1
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_text_that_is_no_unicode_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(JournalError, match="Unicode"):
        replace_file(path, "\ud800")
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    "verb",
    [lambda path: replace_file(path, "x"), lambda path: make_folder(path), lambda path: JsonLines(path).append({})],
    ids=["replace", "make a folder", "append"],
)
def test_a_path_below_a_file_is_a_one_line_error(tmp_path: Path, verb) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError) as failure:
        verb(tmp_path / "file" / "below")
    assert "below" in str(failure.value) and "\n" not in str(failure.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; see the test with a dropped user id")
def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(JournalDenied, match="permissions"):
        replace_file(tmp_path / "a", "x")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_folder_without_permission_is_named_to_another_user(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from infra.journal import JournalDenied, replace_file
os.setuid(65534)
try:
    replace_file(Path("/nki-optimizer-test-must-not-exist"), "x")
except JournalDenied as error:
    print(error)
"""
    done = in_child(code)
    assert "correct its permissions" in done.stdout, done.stderr


def test_a_reader_never_sees_half_a_file_while_a_writer_is_killed_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, json.dumps({"n": -1, "fill": "x" * 200_000}))
    code = """
import json, sys
from pathlib import Path
from infra.journal import replace_file
n = 0
while True:
    replace_file(Path(sys.argv[1]), json.dumps({"n": n, "fill": "x" * 200_000}))
    n += 1
    print(n, flush=True)
"""
    for _ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE)
        for _ in range(5):
            writer.stdout.readline()
            assert len(json.loads(path.read_text())["fill"]) == 200_000
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        assert len(json.loads(path.read_text())["fill"]) == 200_000


def test_a_damaged_file_is_set_aside_under_a_name_that_is_free(tmp_path: Path) -> None:
    now = datetime(2026, 11, 20, 12, 54, 18)
    names = []
    for content in ("one", "two", "three"):
        path = tmp_path / "rewrites.json"
        path.write_text(content)
        aside = set_aside(path, now)
        assert aside.read_text() == content and not path.exists()
        names.append(aside.name)
    assert names[0] == "rewrites.damaged-20261120-125418.json" and len(set(names)) == 3


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "experiments.jsonl")
    assert lines.read() == []
    for number in range(3):
        lines.append({"n": number, "text": "line\nbreak \u2028 µs", "nan": None})
    assert [record["n"] for record in lines.read()] == [0, 1, 2]
    assert (tmp_path / "experiments.jsonl").read_bytes().count(b"\n") == 3


@pytest.mark.parametrize(
    ("tail", "survives"),
    [(b'{"n":1', False), (b"{", False), (b"\x00\x00\x00", False), (b'"text"', False), (b'{"n":1}', True)],
    ids=["half a record", "one byte", "zeros", "no object", "all but the line end"],
)
def test_a_torn_last_line_costs_nothing_that_was_acknowledged(tmp_path: Path, tail: bytes, survives: bool) -> None:
    path = tmp_path / "experiments.jsonl"
    path.write_bytes(b'{"n":0}\n' + tail)
    lines = JsonLines(path)
    before = [{"n": 0}, {"n": 1}] if survives else [{"n": 0}]
    assert lines.read() == before
    lines.append({"n": 2})
    assert lines.read() == [*before, {"n": 2}]
    torn = path.with_name("experiments.jsonl.torn")
    assert torn.exists() is not survives
    if not survives:
        assert torn.read_bytes() == tail + b"\n"


def test_a_torn_line_of_any_length_is_found_and_a_broken_one_in_the_middle_named(tmp_path: Path) -> None:
    path = tmp_path / "experiments.jsonl"
    path.write_bytes(b'{"n":0}\n' + b'{"x":"' + b"y" * 200_000)
    JsonLines(path).append({"n": 1})
    assert JsonLines(path).read() == [{"n": 0}, {"n": 1}]
    path = tmp_path / "experiments.jsonl"
    path.write_bytes(b'{"n":0}\nrubbish\n{"n":2}\n')
    with pytest.raises(JournalDamaged, match=r"experiments\.jsonl line 2"):
        JsonLines(path).read()


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "experiments.jsonl"
    JsonLines(path).append({"n": 0})
    done = in_child(LIMITED.format(call="JsonLines(path).append({'fill': 'x' * 100_000})"), path)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == b'{"n":0}\n'


def _append_many(path: str, who: int) -> None:
    for number in range(40):
        JsonLines(Path(path)).append({"who": who, "n": number, "fill": "x" * 5000})


def test_several_processes_append_whole_lines_and_lose_none(tmp_path: Path) -> None:
    path = tmp_path / "experiments.jsonl"
    writers = [spawn.Process(target=_append_many, args=(str(path), who)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    records = JsonLines(path).read()
    for who in range(3):
        assert [record["n"] for record in records if record["who"] == who] == list(range(40))


def test_a_second_holder_waits_and_then_gives_up_naming_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    waited: list[float] = []
    with FileLock(path), pytest.raises(JournalLocked, match=f"process {os.getpid()}"):
        FileLock(path, 1.0, clock=lambda: sum(waited), sleep=waited.append).acquire()
    assert 1.0 <= sum(waited) < 1.2
    with FileLock(path, 0):
        pass


def test_threads_exclude_each_other_too(tmp_path: Path) -> None:
    inside: list[str] = []

    def work(name: str) -> None:
        for _ in range(20):
            with FileLock(tmp_path / "a.lock"):
                inside.append(name)
                assert inside == [name]
                inside.clear()

    failures: list[object] = []
    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    previous, threading.excepthook = threading.excepthook, failures.append
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = previous
    assert not failures


def test_a_holder_that_is_killed_frees_the_lock(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from infra.journal import FileLock
FileLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(600)
"""
    path = tmp_path / "a.lock"
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(JournalLocked, match=f"process {holder.pid}"):
        FileLock(path, 0).acquire()
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with FileLock(path, 5):
        pass


def test_no_file_handle_is_left_open(tmp_path: Path) -> None:
    def handles() -> int:
        return len(os.listdir("/dev/fd"))

    lines = JsonLines(tmp_path / "a.jsonl")
    before = handles()
    for number in range(50):
        lines.append({"n": number})
        lines.read()
        replace_file(tmp_path / "b", "x")
        with FileLock(tmp_path / "c.lock"), pytest.raises(JournalLocked):
            FileLock(tmp_path / "c.lock", 0).acquire()
    assert handles() == before
