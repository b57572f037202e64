"""SshTarget around judges that behave in every way a judge can: small real programs, shipped like the real one."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CompileFailed, Crashed, Evaluation, Step, TimedOut
from accelopt_core.ports import EvaluationLimits, EvaluationRequest, TargetError, TargetMisconfigured, TargetUnreachable
from accelopt_core.task import ShapePreset, Task
from infra.targets import over_ssh as ssh_target
from infra.targets.over_ssh import SshTarget
from tests.processes import PATIENCE_S, eventually
from tests.ssh.server import Sshd, make_sshd, processes_mentioning, simulated_target

# A judge that does as the contract says, with room for what a test wants done in between.
JUDGE = """
import argparse, json, os, signal, subprocess, sys, time
parser = argparse.ArgumentParser()
for name in ("--job", "--result", "--cache", "--toolchain", "--machine", "--calibration", "--language"):
    parser.add_argument(name)
parser.add_argument("--describe", action="store_true")
options = parser.parse_args()
def say(step, detail):
    print(json.dumps({"step": step, "detail": detail}), flush=True)
if options.describe:
    DESCRIBE
    sys.exit()
job = json.load(open(options.job))
def finish(result, nonce=None):
    with open(options.result + ".partial", "w") as stream:
        json.dump({"nonce": nonce or job["nonce"], **result}, stream)
    os.replace(options.result + ".partial", options.result)
VERDICT = {"evaluation": {"kind": "compile_failed", "message": job["request"]["candidate"]["source"], "line": 3}}
"""
DESCRIBE = (
    'print(json.dumps({"fingerprint": "f", "name": options.toolchain, "simulated": True, "machine": options.machine,'
    '"caveat": "", "installed": {"sdk": "", "compiler": "", "instance": ""}}))'
)

REQUEST = EvaluationRequest(
    task=Task("copy", "def forward(): ...", (ShapePreset("small", (("M", 128),)),)),
    candidate=Candidate("c1", ""),
    limits=EvaluationLimits(compile_timeout_s=1, run_timeout_s=1),
)


class Log:
    def __init__(self, on_line: Callable[[str], object] = lambda detail: None) -> None:
        self.lines: list[tuple[Step, str]] = []
        self._on_line = on_line

    def __call__(self, step: Step, detail: str) -> None:
        self.lines.append((step, detail))
        self._on_line(detail)


Make = Callable[..., SshTarget]


@pytest.fixture
def make(sshd: Sshd, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """make(what the judge does after reading its job, how it describes itself) -> a target that ships this judge."""
    made = []

    def build(body: str, describe: str = DESCRIBE, **options: object) -> SshTarget:
        judge = tmp_path / f"judge-{len(made)}.py"
        judge.write_text(JUDGE.replace("DESCRIBE", describe) + body)
        package = tmp_path / "empty"
        package.write_text("")
        files = {"infra/judging/judge.py": judge, "infra/__init__.py": package}
        monkeypatch.setattr(ssh_target, "files_to_ship", lambda language: files)
        arguments = {"remote_simulator": True, "remote_python": sys.executable, "settings": sshd.settings,
                     "root": str(work), **options}  # fmt: skip
        target = SshTarget(sshd.destination, machine="trn2", **arguments)  # type: ignore[arg-type]  # passed through
        made.append(target)
        return target

    yield build
    for target in made:
        target.close()


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshTarget]:
    """A target whose judge does whatever the candidate's source says: one set-up for many behaviours."""
    folder = tmp_path_factory.mktemp("acting")
    server = make_sshd(folder / "ssh")
    server.trust()
    server.start()
    acts = JUDGE.replace("DESCRIBE", DESCRIBE) + 'exec(job["request"]["candidate"]["source"])'
    (folder / "judge.py").write_text(acts)
    (folder / "empty").write_text("")
    target = simulated_target(server, folder / "far")
    with pytest.MonkeyPatch.context() as patch:
        files = {"infra/judging/judge.py": folder / "judge.py", "infra/__init__.py": folder / "empty"}
        patch.setattr(ssh_target, "files_to_ship", lambda language: files)
        yield target
        target.close()
    server.stop()


def evaluate(target: SshTarget, log: Log | None = None, *, source: str = "the source, ünchanged") -> Evaluation:
    return target.evaluate(replace(REQUEST, candidate=Candidate("c1", source)), log or Log())


def test_given_an_honest_judge_then_its_verdict_and_progress_come_back_and_nothing_stays(make, work) -> None:
    target = make("say('compile and verify', 'seed 0'); say('benchmark', '10 runs'); finish(VERDICT)")
    log = Log()
    assert evaluate(target, log) == CompileFailed("the source, ünchanged", 3)
    assert [step for step, _ in log.lines] == [Step.UPLOAD, Step.VERIFY, Step.BENCHMARK]
    assert log.lines[1:] == [(Step.VERIFY, "seed 0"), (Step.BENCHMARK, "10 runs")]
    assert eventually(lambda: not list((work / "jobs").iterdir()))
    info = target.describe()
    assert info.name.endswith(", simulator") and (info.fingerprint, info.simulated, info.machine) == ("f", True, "trn2")


@pytest.mark.parametrize(
    ("describe", "said"),
    [
        ('print("Hi"); print(json.dumps({"target_error": {"kind": "misconfigured", "message": "no dri"}}))', "no dri"),
        pytest.param('print("nonsense")', "gives no account", marks=pytest.mark.slow),
        pytest.param('sys.exit("broken driver")', "broken driver", marks=pytest.mark.slow),
        ('print(json.dumps({"name": "half"}))', "gives no account"),
    ],
)
def test_given_a_judge_that_cannot_describe_itself_then_one_line_says_why(make: Make, describe: str, said: str) -> None:
    with pytest.raises(TargetMisconfigured, match=said) as caught:
        make("", describe).describe()
    assert "\n" not in str(caught.value)


def test_given_no_sdk_there_then_the_error_offers_the_simulator(make: Make) -> None:
    with pytest.raises(TargetMisconfigured, match="no Neuron SDK.*lacks nki or neuronxcc.*--remote-sim") as caught:
        make("finish(VERDICT)", remote_simulator=False).describe()
    assert "\n" not in str(caught.value)


def test_given_a_python_without_the_simulators_modules_then_the_error_names_them(make: Make, tmp_path: Path) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(TargetMisconfigured, match="lacks numpy, ml_dtypes.*install numpy and ml_dtypes"):
        make("finish(VERDICT)", remote_python=str(bare)).describe()


@pytest.mark.parametrize(
    "noise",
    [
        "print('not json')",
        "print('{}')",
        "print('[1, 2]')",
        "print(json.dumps({'step': 'no such step', 'detail': ''}))",
        "print('[' * 100000)",
        "print('x' * 10_000_000)",
        "sys.stdout.buffer.write(bytes(range(256)) + b'\\n')",
        "say('benchmark', 'long ' * 100000)",
        "say('benchmark', 'two\\nlines')",
    ],
)
def test_whatever_else_a_judge_prints_is_harmless(acting: SshTarget, noise: str) -> None:
    log = Log()
    got = evaluate(acting, log, source=f"{noise}; sys.stdout.flush(); finish(VERDICT)")
    assert isinstance(got, CompileFailed)
    assert all("\n" not in detail and len(detail) <= 500 for _, detail in log.lines)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("finish(VERDICT, nonce='guess')", "nonce"),
        ("finish({'evaluation': {'kind': 'measured', 'latency_us': 1}})", "damaged"),
        ("open(options.result, 'w').write('{')", "not JSON"),
        ("open(options.result, 'wb').write(bytes(range(256)))", "not JSON"),
        ("os.symlink('/etc/hostname', options.result)", "no result"),
        ("finish({'target_error': {'kind': 'misconfigured', 'message': 'no such device'}})", "no such device"),
        ("sys.exit('ImportError: no module of that name')", "no module of that name"),
        ("sys.exit(0)", "no result"),
    ],
)
def test_what_is_not_a_verdict_is_a_fault_of_the_target_in_one_line(acting: SshTarget, body: str, said: str) -> None:
    with pytest.raises(TargetError, match=said) as caught:
        evaluate(acting, source=body)
    assert "\n" not in str(caught.value)


def test_a_judge_that_is_killed_is_a_crash_of_the_candidate(acting: SshTarget) -> None:
    got = evaluate(acting, source="say('compile and verify', 'x'); os.kill(os.getpid(), signal.SIGKILL)")
    assert isinstance(got, Crashed) and got.step == "compile and verify" and "signal 9" in got.message


def test_a_judge_that_hangs_is_ended_with_all_it_started(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = f"51{os.getpid()}.25"
    monkeypatch.setattr(ssh_target, "judge_limit_s", lambda request: 1.5)
    got = evaluate(
        make(
            f"say('benchmark', 'x'); subprocess.Popen(['sleep', '{marker}'], start_new_session=True); "
            f"subprocess.run(['sleep', '{marker}'])"
        )
    )
    assert got == TimedOut(Step.BENCHMARK, 1.5)
    assert not processes_mentioning(f"sleep {marker}")


def test_an_evaluation_whose_supervisor_is_destroyed_is_tried_again_and_then_blamed_on_the_candidate(make, tmp_path):
    tries = tmp_path / "tries"
    body = (
        f"open({str(tries)!r}, 'a').write('x'); say('compile and verify', 'x'); time.sleep(0.1)\n"
        "os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"
    )
    got = evaluate(make(body))
    assert isinstance(got, Crashed) and got.step == "compile and verify"
    assert tries.read_text() == "xx"
    once = (
        f"first = not os.path.exists({str(tries)!r} + '2'); open({str(tries)!r} + '2', 'w')\n"
        "if first: os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)\nfinish(VERDICT)"
    )
    assert isinstance(evaluate(make(once)), CompileFailed)


@pytest.mark.slow
def test_a_judge_whose_files_were_changed_between_two_evaluations_is_sent_again(make: Make, work: Path) -> None:
    target = make("import json; finish(VERDICT)")
    assert isinstance(evaluate(target), CompileFailed)
    tree = next((work / "trees").iterdir())
    (tree / "json.py").write_text("raise SystemExit('planted')")
    (tree / "infra" / "judging" / "judge.py").chmod(0o600)
    (tree / "infra" / "judging" / "judge.py").write_text("raise SystemExit('replaced')")
    assert isinstance(evaluate(target), CompileFailed)
    assert not (tree / "json.py").exists()


def test_the_judge_sees_no_secret_and_keeps_its_temporary_files_in_its_own_folder(make, monkeypatch, work) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-local")
    log = Log()
    evaluate(
        make(
            "import tempfile\nsay('benchmark', tempfile.gettempdir())\n"
            "say('benchmark', 'all: ' + ' '.join(os.environ.values()))\nfinish(VERDICT)"
        ),
        log,
    )
    assert log.lines[1][1].startswith(f"{work}/jobs/")
    assert "sk-local" not in log.lines[2][1]


@pytest.mark.parametrize("moment", ["compiling", pytest.param("finished", marks=pytest.mark.slow)])
def test_a_cut_link_costs_nothing(make: Make, sshd: Sshd, work: Path, moment: str) -> None:
    body = (
        "say('compile and verify', 'compiling'); time.sleep(0.5); finish(VERDICT)\n"
        "say('benchmark', 'finished'); time.sleep(0.3)"
    )
    log = Log(lambda detail: sshd.cut() if detail == moment else None)
    assert isinstance(evaluate(make(body), log), CompileFailed)
    said = [detail for _, detail in log.lines[1:]]
    assert [detail for detail in said if not detail.startswith("note: the link to")] == ["compiling", "finished"]


def test_ctrl_c_ends_the_judge_over_there(make: Make, work: Path) -> None:
    marker = f"52{os.getpid()}.25"

    def interrupt(detail: str) -> None:
        if detail == "on":
            raise KeyboardInterrupt

    target = make(
        f"subprocess.Popen(['sleep', '{marker}'], start_new_session=True); say('benchmark', 'on')\n"
        f"subprocess.run(['sleep', '{marker}'])"
    )
    with pytest.raises(KeyboardInterrupt):
        evaluate(target, Log(interrupt))
    assert not processes_mentioning(f"sleep {marker}")
    assert not list((work / "jobs").iterdir())


def test_close_from_another_thread_ends_the_judge_over_there(make: Make, work: Path, sshd: Sshd) -> None:
    marker = f"53{os.getpid()}.25"
    started = threading.Event()
    target = make(f"say('benchmark', 'on'); subprocess.run(['sleep', '{marker}'])")
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(evaluate(target, Log(lambda detail: started.set() if detail == "on" else None)))
        except TargetError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(PATIENCE_S)
    target.close()
    thread.join(timeout=PATIENCE_S)
    assert not thread.is_alive() and len(ended) == 1
    assert not processes_mentioning(f"sleep {marker}")
    assert not list((work / "jobs").iterdir()) and not list((work / "scratch").iterdir())
    assert eventually(lambda: not sshd.connections())


@pytest.mark.slow
def test_when_the_host_goes_away_for_good_then_one_line_says_so(make: Make, sshd: Sshd) -> None:
    target = make(
        "say('benchmark', 'on'); time.sleep(3); finish(VERDICT)", settings=replace(sshd.settings, reconnect_for_s=0.5)
    )
    with pytest.raises(TargetUnreachable) as caught:
        evaluate(target, Log(lambda detail: sshd.stop() if detail == "on" else None))
    assert "\n" not in str(caught.value) and "gave up" in str(caught.value)
