"""`orchestrator.py model` against a real sshd: run, scored, put back, with faults in the middle of each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from infra.e2e_benchmark import Benchmark
from tests.house.structure import ROOT
from tests.infra.test_documents import checked
from tests.model_benchmark.checkout import ATTENTION, MATMUL, WINNERS, lay_out, picture
from tests.processes import eventually
from tests.ssh.server import Sshd, processes_mentioning

FASTER, FAILED, UNREACHABLE = 0, 3, 4

BENCH = """
import json, os, sys, time
here, report = sys.argv[1:]
with open(os.path.join(here, "matmul_kernel.py")) as stream:
    with_kernel = "nki_optimizer_matmul" in stream.read()
with open(os.path.join(os.path.dirname(here), "tally"), "a") as stream:
    stream.write("k" if with_kernel else "b")
print("measuring", flush=True)
said = json.load(open(os.path.join(os.path.dirname(here), "said.json")))["with" if with_kernel else "without"]
while said.get("waits") and not os.path.exists(said["waits"]):
    time.sleep(0.02)
if said.get("dies"):
    sys.exit("ModuleNotFoundError: no module named 'their_helpers'")
if said.get("leaves"):
    open(os.path.join(here, said["leaves"]), "w").close()
if said.get("silent"):
    sys.exit(0)
with open(report, "w") as stream:
    stream.write(json.dumps(said["report"])[: said.get("cut")] + said.get("blanks", 0) * " ")
sys.exit(said.get("then"))
"""
"""A harness of the user's own that says what the test wants, and counts its runs."""

QUICK = {"accuracy": True, "latency_ms": 80.0, "tokens_per_s": 50.0}
SLOW = {"accuracy": True, "latency_ms": 100.0, "tokens_per_s": 40.0}


class Model:
    """A checkout behind an sshd, and the command line that benchmarks it."""

    def __init__(self, sshd: Sshd, folder: Path, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.checkout = lay_out(folder / "model")
        (self.checkout / "bench.py").write_text(BENCH)
        self.before = picture(self.checkout)
        self.folder, self.work, self._capsys = folder, work, capsys
        self.host = (
            sshd.destination,
            "--ssh-config", str(sshd.home / "config"),
            "--remote-dir", str(work), "--remote-python", sys.executable, "--checkout", str(self.checkout),
            "--model-benchmarks", str(folder / "kept"),
        )  # fmt: skip
        self.put = ("--put", f"{WINNERS[MATMUL]}={MATMUL}")
        self.command = ("--harness", "command", "--harness-command", "{python} {checkout}/bench.py {checkout} {report}")

    def says(self, without: Any = None, kernels: Any = None) -> None:
        said = {"without": {"report": SLOW, **(without or {})}, "with": {"report": QUICK, **(kernels or {})}}
        (self.folder / "said.json").write_text(json.dumps(said))

    @property
    def tally(self) -> str:
        path = self.folder / "tally"
        return path.read_text() if path.exists() else ""

    def __call__(self, *flags: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, the document, and what a person reads."""
        self._capsys.readouterr()
        status = orchestrator.main(["model", *self.host, "--json", *flags])
        captured = self._capsys.readouterr()
        return status, checked(captured.out), captured.err

    def reaches(self, tally: str) -> bool:
        """A client of its own has to start and run the harness; on a busy machine that takes a while."""
        return eventually(lambda: self.tally == tally)

    @property
    def is_as_it_was(self) -> bool:
        return picture(self.checkout) == self.before

    @property
    def nothing_runs(self) -> bool:
        return eventually(lambda: not processes_mentioning(str(self.work)))


@pytest.fixture
def model(sshd: Sshd, tmp_path: Path, work: Path, capsys: pytest.CaptureFixture[str]) -> Model:
    made = Model(sshd, tmp_path / "host", work, capsys)
    made.says()
    return made


def test_the_pretend_model_with_winners_in_it_scores_higher_and_is_put_back(model: Model) -> None:
    both = ("--put", ",".join(f"{file}={place}" for place, file in WINNERS.items()))
    args = ("--harness-args", "--mode evaluate_all --platform-target trn3")
    status, said, read = model(*both, *args)
    assert (status, said["verdict"], said["in_place"]) == (FASTER, "faster", True), read
    before, after = said["baseline"], said["kernels"]
    assert before["accuracy"] == after["accuracy"] == "passed" and len(after["prompts"]) == 2
    for each in (before, after):
        assert each["score"] == sum(prompt["score"] for prompt in each["prompts"]) and each["nki_flop_share"] > 0.9
    assert said["gain"]["score"] == pytest.approx(said["gain"]["latency"] * said["gain"]["throughput"], rel=1e-6)
    assert said["gain"]["per_token"] == pytest.approx(said["gain"]["latency"]) and said["gain"]["latency"] > 1.1
    assert "faster: accuracy passed; score is better by a factor of" in read and "the kernels are in place" in read
    assert not model.is_as_it_was
    status, said, read = model("--undo")
    assert status == 0 and ATTENTION.module_file in said["files"] and model.is_as_it_was and model.nothing_runs
    assert model("--undo")[1]["files"] == []


def test_wrong_answers_fail_whatever_the_speed_and_the_checkout_is_put_back_at_once(model: Model) -> None:
    model.says(kernels={"report": {**QUICK, "accuracy": False, "latency_ms": 1e-3}})
    status, said, read = model(*model.put, *model.command)
    assert (status, said["verdict"], said["in_place"]) == (FAILED, "failed", False)
    assert "the answers are wrong" in said["why"] and "accuracy failed" in read and model.is_as_it_was


@pytest.mark.parametrize(
    ("kernels", "status", "why"),
    [
        ({"dies": True}, FAILED, "ended with status 1: ModuleNotFoundError: no module named 'their_helpers'"),
        pytest.param({"silent": True}, FAILED, "the command left no report", marks=pytest.mark.slow),
        pytest.param({"then": "core dumped"}, FAILED, "ended with status 1: core dumped", marks=pytest.mark.slow),
        pytest.param({"cut": 20}, FAILED, "report.json is no JSON", marks=pytest.mark.slow),
        pytest.param({"report": SLOW}, FASTER, "latency is no better", marks=pytest.mark.slow),
    ],
)
def test_what_is_no_gain_is_put_back_with_the_reason(model: Model, kernels: Any, status: int, why: str) -> None:
    model.says(kernels=kernels)
    came, said, _ = model(*model.put, *model.command)
    assert came == status and why in said["why"] and not said["in_place"] and model.is_as_it_was
    assert model.tally == "bk"


@pytest.mark.slow
def test_the_baseline_is_measured_once_unless_it_is_asked_for_again(model: Model) -> None:
    model.says(kernels={"report": SLOW})
    other = model.folder / "python"
    other.symlink_to(Path(sys.executable).resolve())
    for flags, added in (((), "bk"), ((), "k"), (("--baseline-again",), "bk"), (("--remote-python", str(other)), "bk")):
        before = model.tally
        assert model(*model.put, *model.command, *flags)[0] == FASTER
        assert model.tally == before + added, flags


@pytest.mark.slow
def test_a_baseline_that_is_none_touches_nothing(model: Model) -> None:
    model.says(without={"dies": True})
    status, said, _ = model(*model.put, *model.command)
    assert status == UNREACHABLE and "their_helpers" in said["error"] and model.is_as_it_was
    model.says(without={"report": {**SLOW, "accuracy": False}})
    status, said, _ = model(*model.put, *model.command)
    assert status == UNREACHABLE and "as it is, without any kernel" in said["error"] and model.is_as_it_was
    model.says(without={"cut": 20})
    status, said, _ = model(*model.put, *model.command)
    assert status == UNREACHABLE and "ends too early" in said["error"] and model.is_as_it_was
    (folder,) = re.findall(r"what came back is in (.+)$", said["error"])
    assert (Path(folder) / "report.json").stat().st_size == 20
    model.says()
    status, said, _ = model(*model.put, *model.command)
    assert (status, model.tally, said["notes"]) == (FASTER, "bbbbk", []), "what was no result stands for none"


@pytest.mark.slow
def test_a_checkout_that_changes_while_the_kernels_run_has_no_verdict(model: Model) -> None:
    model.says(kernels={"leaves": "bench.log"})
    status, said, _ = model(*model.put, *model.command)
    assert status == UNREACHABLE and "while the harness ran with the kernels in it" in said["error"]
    (model.checkout / "bench.log").unlink()
    assert model.is_as_it_was and model.tally == "bk"


def in_the_background(model: Model, *flags: str) -> tuple[threading.Thread, list[Any]]:
    came: list[Any] = []
    thread = threading.Thread(target=lambda: came.append(model(*flags)))
    thread.start()
    return thread, came


@pytest.mark.parametrize("which", [pytest.param("b", marks=pytest.mark.slow), "bk"])
def test_a_link_that_drops_while_the_harness_runs_is_waited_out(model: Model, sshd: Sshd, which: str) -> None:
    go = model.folder / "go"
    model.says(**{"without" if which == "b" else "kernels": {"waits": str(go)}})
    thread, came = in_the_background(model, *model.put, *model.command)
    assert model.reaches(which)
    sshd.cut()
    time.sleep(0.3)
    go.touch()
    thread.join(60)
    status, said, _ = came[0]
    assert (status, said["verdict"], model.tally) == (FASTER, "faster", "bk")
    assert any("dropped, and was back" in note for note in said["notes"])


@pytest.mark.parametrize("which", [pytest.param("b", marks=pytest.mark.slow), "bk"])
def test_after_kill_9_of_the_client_the_same_command_collects_what_ran_on(model: Model, which: str) -> None:
    go = model.folder / "go"
    model.says(**{"without" if which == "b" else "kernels": {"waits": str(go)}})
    argv = [sys.executable, str(ROOT / "orchestrator.py"), "model", *model.host, *model.put, *model.command]
    client = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert model.reaches(which)
    client.kill()
    client.wait()
    go.touch()
    status, said, read = model(*model.put, *model.command)
    assert (status, said["verdict"], model.tally) == (FASTER, "faster", "bk") and "collecting it" in read
    assert model("--undo")[0] == 0 and model.is_as_it_was


def test_undo_after_kill_9_ends_what_runs_there_and_puts_every_byte_back(model: Model) -> None:
    model.says(kernels={"waits": str(model.folder / "never")})
    argv = [sys.executable, str(ROOT / "orchestrator.py"), "model", *model.host, *model.put, *model.command]
    client = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert model.reaches("bk")
    client.kill()
    client.wait()
    assert not model.is_as_it_was and processes_mentioning("bench.py")
    status, said, _ = model("--undo")
    assert status == 0 and MATMUL.file in said["files"] and model.is_as_it_was and model.nothing_runs


@pytest.mark.slow
def test_what_was_edited_after_kill_9_is_not_compared_with_the_baseline_of_before(model: Model) -> None:
    go = model.folder / "go"
    model.says(kernels={"waits": str(go)})
    argv = [sys.executable, str(ROOT / "orchestrator.py"), "model", *model.host, *model.put, *model.command]
    client = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert model.reaches("bk")
    client.kill()
    client.wait()
    (model.checkout / "qwen.py").write_text("# a better model")
    (model.checkout / MATMUL.module_file).write_text("# a better kernel")
    go.touch()
    status, said, read = model(*model.put, *model.command)
    assert (status, said["verdict"], model.tally) == (FASTER, "faster", "bkbk")
    assert "it was changed with kernels in place" in read
    (note,) = [note for note in said["notes"] if "is a copy of a file that was changed meanwhile" in note]
    assert Path(note.split(" on ")[0]).read_text() == "# a better kernel"
    assert model("--undo")[0] == 0 and (model.checkout / "qwen.py").read_text() == "# a better model"
    (model.checkout / "qwen.py").write_bytes(model.before["qwen.py"][0])
    assert {name: each[:2] for name, each in picture(model.checkout).items()} == {
        name: each[:2] for name, each in model.before.items()
    }


DIES_AT = """
import os, sys
from infra.ssh.runner import SshRunner
import orchestrator
real, at = SshRunner._request, sys.argv[1]
def asked(self, request, payload=b""):
    stream = real(self, request, payload)
    if request["op"] == at:
        os.kill(os.getpid(), 9)
    return stream
SshRunner._request = asked
orchestrator.main(sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", ["checkout_place", "checkout_note_job", "job_start", "checkout_put_back"])
def test_undo_after_kill_9_of_the_client_at_each_of_its_requests(model: Model, at: str) -> None:
    model.says(kernels={"report": SLOW})
    known = model(*model.put, *model.command)[1]["baseline"]["began"]
    argv = [sys.executable, "-c", DIES_AT, at, "model", *model.host, *model.put, *model.command]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert model("--undo")[0] == 0 and model.is_as_it_was and model.nothing_runs
    status, said, _ = model(*model.put, *model.command)
    assert (status, said["verdict"], said["baseline"]["began"]) == (FASTER, "not faster", known)
    assert model.is_as_it_was and model.nothing_runs


@pytest.mark.slow
def test_a_benchmark_of_another_client_is_left_alone(model: Model) -> None:
    go = model.folder / "go"
    model.says(kernels={"waits": str(go)})
    thread, came = in_the_background(model, *model.put, *model.command)
    assert model.reaches("bk")
    other = (*model.host[:-1], str(model.folder / "another client"), "--put", f"{WINNERS[MATMUL]}={MATMUL}")
    argv = [sys.executable, str(ROOT / "orchestrator.py"), "model", *other, *model.command]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == UNREACHABLE and "is at work in" in done.stderr, done.stderr
    go.touch()
    thread.join(60)
    assert (came[0][1]["verdict"], model.tally) == ("faster", "bk")


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [False, True])
def test_an_interruption_ends_the_harness_and_puts_the_checkout_back(model, monkeypatch, damaged) -> None:
    """Or says that it could not."""
    model.says(kernels={"waits": str(model.folder / "never")})
    follow: Callable[..., None] = Benchmark._follow

    def interrupted(self: Benchmark, job: Any, record: Any, *, start: bool = False) -> None:
        tell = self._tell

        def told(line: str) -> None:
            if line == "measuring" and model.tally == "bk":
                for original in model.work.glob("checkouts/*/" + 64 * "?") if damaged else ():
                    original.write_text("damaged")
                raise KeyboardInterrupt
            tell(line)

        monkeypatch.setattr(self, "_tell", told)
        follow(self, job, record, start=start)

    monkeypatch.setattr(Benchmark, "_follow", interrupted)
    status, said, read = model(*model.put, *model.command)
    assert (status, said["error"]) == (5, "interrupted") and model.nothing_runs
    assert model.is_as_it_was is not damaged
    assert ("the kernels are in the checkout still, `model --undo` puts it back" in read) is damaged
