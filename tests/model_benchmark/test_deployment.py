"""A checkout over a real sshd: kernels put in and taken out, while the link drops, and while the host is killed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.model_benchmark.deployment import Deployment, files_of, fitted, key_of
from infra.model_benchmark.placing import CannotPlace, Kernel, Place
from infra.ssh import stream
from infra.ssh.remote_agent import checkouts
from infra.ssh.remote_agent.frames import Wire
from infra.ssh.runner import SshRunner
from infra.ssh.stream import JobRefused
from tests.model_benchmark.checkout import ATTENTION, MATMUL, WINNERS, lay_out, picture, winner
from tests.ssh.server import Sshd

BOTH = [(winner(place), place) for place in WINNERS]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return lay_out(tmp_path / "their model")


@pytest.fixture
def deployment(runner: SshRunner, checkout: Path) -> Deployment:
    return Deployment(runner, str(checkout))


def put_in(deployment: Deployment) -> None:
    there = deployment.look(files_of(BOTH))
    deployment.put_in(fitted(BOTH, there), there)


def test_kernels_are_put_in_and_the_checkout_is_put_back_byte_for_byte(deployment, checkout, work) -> None:
    before = picture(checkout)
    put_in(deployment)
    there = deployment.look()
    assert there.in_place is not None and there.in_place.key == key_of(BOTH)
    changed = {name for name, content in picture(checkout).items() if before.get(name) != content}
    ours = {MATMUL.file, MATMUL.module_file, ATTENTION.file, ATTENTION.module_file}
    assert changed == {*ours, checkouts.MARK}
    assert (checkout / MATMUL.module_file).read_text() == winner(MATMUL).source
    assert (checkout / MATMUL.file).stat().st_mode & 0o777 == 0o640
    back = deployment.put_back()
    assert back is not None and set(back.files) == ours and back.kept == ()
    assert picture(checkout) == before
    assert deployment.put_back() is None and not list((work / "checkouts").iterdir())


@pytest.mark.slow
def test_a_checkout_that_changed_since_it_was_read_is_left_alone(deployment: Deployment, checkout: Path) -> None:
    there = deployment.look(files_of(BOTH))
    (checkout / "qwen.py").write_text("# edited")
    before = picture(checkout)
    with pytest.raises(JobRefused, match="was changed since"):
        deployment.put_in(fitted(BOTH, there), there)
    assert picture(checkout) == before and deployment.look().in_place is None


def in_two_folders(checkout: Path) -> list[tuple[Kernel, Place]]:
    """Files of one name, in folders of the checkout."""
    places = [Place(f"{folder}/{MATMUL.file}", MATMUL.function) for folder in ("one", "other")]
    for place in places:
        (checkout / place.folder).mkdir()
        (checkout / place.file).write_bytes((checkout / MATMUL.file).read_bytes())
    return [(winner(MATMUL), place) for place in places]


@pytest.mark.slow
def test_whatever_the_user_made_of_our_files_meanwhile_is_kept_and_named(
    runner: SshRunner, deployment: Deployment, checkout: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two edits of files of one name, a link, a folder in a file's place and a folder removed; the answer is lost."""
    both = in_two_folders(checkout)
    before = picture(checkout)
    for wanted in (both, BOTH):
        there = deployment.look(files_of(wanted))
        deployment.put_in(fitted(wanted, there), there)
        if wanted is both:
            for number, (_, place) in enumerate(both):
                (checkout / place.file).write_text(f"# idea {number}")
        else:
            (checkout / MATMUL.file).unlink()
            (checkout / MATMUL.file).symlink_to("qwen.py")
            (checkout / ATTENTION.module_file).unlink()
            (checkout / ATTENTION.module_file).mkdir()
            (checkout / ATTENTION.module_file / "notes").write_text("mine")
        expect, lost = stream.Stream.expect, []

        def losing(self: stream.Stream, *kinds: str) -> Any:
            answer = expect(self, *kinds)  # noqa: B023
            if answer[0]["frame"] == "back" and not lost:  # noqa: B023
                lost.append(answer)  # noqa: B023
                sshd.cut()
                self._drop(EOFError("cut by the test"))
            return answer

        monkeypatch.setattr(stream.Stream, "expect", losing)
        back = deployment.put_back()
        monkeypatch.setattr(stream.Stream, "expect", expect)
        assert back is not None and picture(checkout) == before and lost
        kept = [Path(copy) for copy in back.kept]
        if wanted is both:
            assert [copy.read_text() for copy in kept] == ["# idea 0", "# idea 1"]
        else:
            link, folder = kept
            assert link.is_symlink() and (folder / "notes").read_text() == "mine"
        assert deployment.put_back() is None, "it was another question"


@pytest.mark.slow
def test_the_digest_is_of_the_users_files_while_ours_are_in_place(deployment: Deployment, checkout: Path) -> None:
    there = deployment.look()
    put_in(deployment)
    assert deployment.look().digest == there.digest
    main = (checkout / "main.py").read_bytes()
    for name, text in (("main.py", main + b"# edited"), (MATMUL.file, b"# edited"), ("new.py", b"")):
        was = (checkout / name).read_bytes() if (checkout / name).exists() else None
        (checkout / name).write_bytes(text)
        assert deployment.look().digest != there.digest, name
        (checkout / name).unlink() if was is None else (checkout / name).write_bytes(was)
    (checkout / "main.py").write_bytes(main)
    assert deployment.look().digest == there.digest


def test_an_edit_just_before_the_first_file_is_replaced_stays(checkout: Path, work: Path) -> None:
    """Between the copies and the change; the agent's own code in a process of its own."""
    before = picture(checkout)

    def edited() -> None:
        record = checkouts._record

        def and_edits(folder: str, placed: dict[str, Any]) -> None:
            record(folder, placed)
            if not (checkout / "idea").exists():
                (checkout / "idea").touch()
                (checkout / ATTENTION.file).write_text("# idea")

        checkouts._record = and_edits

    with pytest.raises(AssertionError):
        carried_out(checkouts.place, checkout, work, first=edited)
    (checkout / "idea").unlink()
    assert carried_out(checkouts.put_back, checkout, work)
    now = picture(checkout)
    assert now.pop(ATTENTION.file)[0] == b"# idea" and before.pop(ATTENTION.file)
    assert now == before and not list((work / "checkouts").iterdir())


def test_links_and_files_that_are_not_there_are_refused(deployment: Deployment, checkout: Path) -> None:
    (checkout / MATMUL.file).rename(checkout / "elsewhere.py")
    with pytest.raises(CannotPlace, match="has no matmul_kernel.py"):
        put_in(deployment)
    (checkout / MATMUL.file).symlink_to("elsewhere.py")
    with pytest.raises(JobRefused, match="is a link"):
        put_in(deployment)
    (checkout / MATMUL.file).unlink()
    (checkout / "elsewhere.py").rename(checkout / MATMUL.file)
    (checkout / MATMUL.module_file).write_text("# the user's own")
    with pytest.raises(CannotPlace, match="is there already"):
        put_in(deployment)
    (checkout / MATMUL.module_file).unlink()
    elsewhere = lay_out(checkout.parent / "elsewhere")
    before, digest = picture(elsewhere), deployment.look().digest
    (checkout / "layers").symlink_to(elsewhere)
    assert deployment.look().digest != digest
    behind = [(winner(MATMUL), Place(f"layers/{MATMUL.file}", MATMUL.function))]
    with pytest.raises(JobRefused, match="layers is a link: name the folder"):
        deployment.look(files_of(behind))
    assert picture(elsewhere) == before


@pytest.fixture
def cut_each_request_once(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Every operation on a checkout loses its link after it was sent whole, and once before its answer is read."""
    send, expect, cut = stream.Stream.send, stream.Stream.expect, set()

    def cutting(self: stream.Stream, data: bytes) -> None:
        operation = next((name for name in OPERATIONS if f'"{name}"'.encode() in data), "")
        if operation and f"{operation}, sent half" not in cut:
            cut.add(f"{operation}, sent half")
            send(self, data[: len(data) // 2])
            sshd.cut()
            send(self, data[len(data) // 2 :])
        else:
            send(self, data)
            self.operation = operation  # type: ignore[attr-defined]

    def cutting_the_answer(self: stream.Stream, *kinds: str):
        answer = expect(self, *kinds)
        operation = getattr(self, "operation", "")
        if operation and answer[0]["frame"] != "file" and f"{operation}, answered" not in cut:
            cut.add(f"{operation}, answered")
            sshd.cut()
            self._buffer = b""
            self._drop(EOFError("cut by the test"))
        return answer

    monkeypatch.setattr(stream.Stream, "send", cutting)
    monkeypatch.setattr(stream.Stream, "expect", cutting_the_answer)
    yield cut


OPERATIONS = ("checkout_look", "checkout_place", "checkout_put_back")


def test_a_link_that_drops_at_every_request_loses_nothing(runner, deployment, checkout, cut_each_request_once) -> None:
    before = picture(checkout)
    runner.connect()
    put_in(deployment)
    assert (checkout / MATMUL.module_file).read_text() == winner(MATMUL).source
    deployment.put_back()
    assert picture(checkout) == before
    assert cut_each_request_once == {f"{name}, {when}" for name in OPERATIONS for when in ("sent half", "answered")}


TOUCHING = ("open", "replace", "unlink", "utime", "rmdir", "makedirs")
"""Functions of `os` that the agent changes files by."""


def test_wherever_kill_9_strikes_the_checkout_comes_back(checkout: Path, work: Path) -> None:
    """The agent's own code in a process of its own, killed before every third of its steps, and the last."""
    before, names = picture(checkout), {}
    for operation in (checkouts.place, checkouts.put_back):
        steps = 0
        while True:
            steps += 3
            if operation is checkouts.put_back:
                assert carried_out(checkouts.place, checkout, work)
            finished = carried_out(operation, checkout, work, dies_at=steps)
            if operation is checkouts.place and steps % 2:
                assert carried_out(checkouts.place, checkout, work), f"asked again after step {steps}"
                assert (checkout / ATTENTION.file).read_text() == "changed as well"
            assert carried_out(checkouts.put_back, checkout, work)
            assert picture(checkout) == before, f"{operation.__name__}, killed before step {steps}"
            assert not list((work / "checkouts").iterdir())
            if finished:
                break
        names[operation.__name__] = steps
    assert min(names.values()) > 20, names


def carried_out(
    operation: Callable[[dict[str, Any], Wire], None],
    checkout: Path,
    work: Path,
    dies_at: int = 0,
    first: Callable[[], None] = lambda: None,
) -> bool:
    """Whether it came to its end; by then it may have died before its step of that number."""
    text = {MATMUL.file: b"changed", MATMUL.module_file: b"new", ATTENTION.file: b"changed as well"}
    request = {
        "root": str(work), "checkout": str(checkout), "key": "k", "files": [[n, len(d)] for n, d in text.items()],
        "ask": "once", "before": checkouts._digest_of(str(checkout), lambda: None),
    }  # fmt: skip
    with tempfile.TemporaryFile() as payload:
        payload.write(b"".join(text.values()))
        payload.seek(0)
        child = os.fork()
        if child == 0:
            try:
                os.dup2(payload.fileno(), 0)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                steps = itertools.count(1)
                for name in TOUCHING if dies_at else ():
                    die_before(name, steps, dies_at)
                first()
                operation(request, Wire(60.0, on_broken=lambda: None))
                os._exit(0)
            finally:
                os._exit(3)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL) and (dies_at or status == 0), status
    return status == 0


def die_before(name: str, steps: Iterator[int], dies_at: int) -> None:
    real = getattr(os, name)

    def fatal(*given: Any, **named: Any) -> Any:
        if next(steps) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **named)

    setattr(os, name, fatal)


@pytest.mark.parametrize("dies", ["checkout_place", pytest.param("checkout_put_back", marks=pytest.mark.slow)])
def test_a_host_that_is_killed_in_the_middle_goes_on_when_it_is_asked_again(
    sshd: Sshd, work: Path, checkout: Path, deployment: Deployment, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over SSH: the agent dies between two files; the client hears a dropped link and asks again."""
    before, whole, deaths = picture(checkout), stream.remote_agent_program(), []
    modules = json.loads(zlib.decompress(whole[10:]))
    fatal = [[name, text + DIES_AFTER_ONE if name.endswith(".checkouts") else text] for name, text in modules]
    packed = zlib.compress(json.dumps(fatal).encode())

    def program() -> bytes:
        if deaths or not requests or requests[-1] != dies:
            return whole
        deaths.append(dies)
        return b"%010d" % len(packed) + packed

    requests: list[str] = []
    ask = SshRunner._request

    def noting(self: SshRunner, request: dict[str, Any], payload: bytes = b"") -> Any:
        requests.append(request["op"])
        return ask(self, request, payload)

    monkeypatch.setattr(SshRunner, "_request", noting)
    monkeypatch.setattr("infra.ssh.runner.remote_agent_program", program)
    put_in(deployment)
    assert (checkout / ATTENTION.module_file).read_text() == winner(ATTENTION).source
    deployment.put_back()
    assert picture(checkout) == before and deaths == [dies] and requests.count(dies) == 2


DIES_AFTER_ONE = """
_really_replace, _replaced = _replace, []
def _replace(*given):
    if _replaced:
        os.kill(os.getpid(), 9)
    _replaced.append(_really_replace(*given))
"""
