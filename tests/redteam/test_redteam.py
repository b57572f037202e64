"""Hostile candidates against the real judge: none is accepted, and none harms it.

The judge is asked as for the user's own kernel, whose text is not refused: what holds here is the isolation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CompileFailed, Evaluation, Implausible, Incorrect, Measured, TimedOut, explain
from accelopt_core.languages.nki.static_checks import forbidden
from accelopt_core.ports import EvaluationLimits, EvaluationRequest
from accelopt_core.task import ShapePreset, Task
from accelopt_core.toolchain import CandidateFault, CompileError, TensorArgument
from infra.judging.shipment import TREE
from infra.simulator import toolchain as simulator_toolchain
from infra.simulator.toolchain import SimulatorToolchain
from infra.targets.local import LocalTarget
from infra.targets.over_ssh import SshTarget
from tests.e2e import kernels
from tests.processes import PATIENCE_S, eventually, limits_s, running
from tests.redteam.attacks import ATTACKS, EVERY_FILE, NAMES, PROGRAM, SECRET, source_of
from tests.redteam.far import judge_over_ssh
from tests.slow import quick
from tests.ssh.server import processes_mentioning

TASK = Task("sum", kernels.REFERENCE, (ShapePreset("full", (("P", 128), ("N", 512), ("T", 1))),), seeds=(0, 21))
LIMITS = EvaluationLimits(compile_timeout_s=2.5)
"""For attacks, some of which never end; what is judged by its outputs has the limits of every run."""
HONEST = kernels.FAST.replace("STEP = 2048", "STEP = 512")
HARMLESS_TEXT = {"infinite loop", "memory bomb", "endless output", "SystemExit with success", "the success line",
                 "a spoofed verdict", "the known seeds"}  # fmt: skip
"""Nothing to refuse in the text of these: they compute, print or end."""


def judged(
    target: LocalTarget | SshTarget, source: str, parent: str | None = None, limits: EvaluationLimits | None = None
) -> Evaluation:
    request = EvaluationRequest(TASK, Candidate("c", source, parent), limits or EvaluationLimits(), extra_seeds=(7,))
    return target.evaluate(request, lambda step, detail: None)


@pytest.fixture(scope="module")
def here() -> Iterator[LocalTarget]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTHROPIC_API_KEY", SECRET)
        target = LocalTarget("simulator", "trn2")
        assert isinstance(judged(target, HONEST), Measured)
        yield target
        assert isinstance(judged(target, HONEST), Measured), "the judge was harmed"
        target.close()


@dataclass(frozen=True)
class Session:
    """What became of every hostile candidate in one session over SSH, and of what came after them."""

    verdicts: dict[str, Evaluation]
    honest: Evaluation
    left_running: tuple[str, ...]
    left_on_disk: tuple[str, ...]


@pytest.fixture(scope="module")
def far(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """All that this run of the tests asks for, over one connection to one server, in one session."""
    names = [name for name in NAMES if any(f"over_ssh[{name}]" in item.nodeid for item in request.session.items)]
    with judge_over_ssh(tmp_path_factory) as far:
        target, server, root = far.target, far.server, far.root
        assert isinstance(judged(target, HONEST), Measured)
        connection = server.connections()
        with ThreadPoolExecutor(target.width) as threads:
            verdicts = dict(zip(names, threads.map(lambda name: judged(target, source_of(name), limits=LIMITS), names)))
        assert server.connections() == connection, "the link dropped"
        honest = judged(target, HONEST)
    jobs = tuple(path.name for path in (root / "jobs").iterdir())
    return Session(verdicts, honest, (*running(PROGRAM), *processes_mentioning(str(root))), jobs)


def assert_not_accepted(result: Evaluation) -> None:
    assert isinstance(result, (CompileFailed, Incorrect, Implausible, TimedOut)), explain(result)
    assert SECRET not in explain(result) and "\n" not in explain(result)[:20]
    assert eventually(lambda: not running(PROGRAM)), "a process of the candidate's outlived it"


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_candidate_is_not_accepted_here(here: LocalTarget, name: str) -> None:
    assert_not_accepted(judged(here, source_of(name), limits=LIMITS))
    assert not (TREE / "nki_sim" / "timing" / "cost.py").read_text(encoding="utf-8").endswith("raise SystemExit\n")


FAR = (
    "infinite loop that ignores signals", "fork bomb", "memory bomb", "signal to everybody", "a program that stays",
    "the memory of the parent", "references of its own", "the simulator's files", "a spoofed verdict", "a huge program",
    "another clock", "half of the work",
)  # fmt: skip
"""The judge there is the judge here: these try what lies between, processes and files and the way of the verdict."""


@pytest.mark.parametrize("name", quick(*FAR, of=NAMES))
def test_a_hostile_candidate_is_not_accepted_over_ssh(far: Session, name: str) -> None:
    assert_not_accepted(far.verdicts[name])


def test_after_all_of_them_the_judge_over_there_is_unharmed_and_nothing_is_left(far: Session) -> None:
    assert isinstance(far.honest, Measured), explain(far.honest)
    assert not far.left_running and not far.left_on_disk


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - HARMLESS_TEXT))
def test_its_text_alone_gives_it_away(name: str) -> None:
    assert forbidden(source_of(name))


def test_a_proposed_kernel_that_reaches_out_is_not_run(here: LocalTarget) -> None:
    result = judged(here, "import os\nos.remove('/nowhere')\n" + HONEST, parent="input")
    assert isinstance(result, CompileFailed) and "os" in result.message and "unusual-import" in result.message


@pytest.mark.skipif(sys.platform != "linux", reason="the filter of system calls is Linux's")
@pytest.mark.parametrize(
    "name", ["fork bomb", "signal to everybody", "a daemon that stays", "the network", "disk filler"]
)
def test_without_namespaces_the_filter_and_the_limits_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator_toolchain, "DISK_LIMIT", 64 << 20)
    tensor = TensorArgument((128, 512), "float32")

    def is_stopped(limit_s: float) -> bool:
        """False where the limit was over before the kernel began."""
        toolchain = SimulatorToolchain("trn2", namespaces=False)
        with pytest.raises(CandidateFault):
            toolchain.compile(source_of(name), [tensor, tensor], limit_s)
        began = "no namespaces" in toolchain.isolation
        assert eventually(lambda: not running(PROGRAM))
        toolchain.compile(HONEST, [tensor, tensor], PATIENCE_S)
        toolchain.close()
        return began

    assert any(is_stopped(limit_s) for limit_s in limits_s(3.0))


LEFT = f"""{HONEST}{EVERY_FILE}
from dataclasses import replace
import nki_sim
from nki_sim.encoding import program_file
from nki_sim.dtypes import as_dtype
from nki_sim.tracing.session import TensorSpec
import nki.isa as nisa

def large(a, b):
    result = kernel(a, b)
    tile = nl.ndarray((128, 55000), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    nisa.dma_copy(dst=result, src=tile[:, 0:512])
    return result

def writing(a, b):
    result = kernel(a, b)
    nisa.dma_copy(dst=a, src=b)
    return result

def traced(body, machine="trn2"):
    tile = TensorSpec((128, 512), as_dtype("float32"))
    return nki_sim.trace(body, tile, tile, machine=machine)

programs(program_file.dumps(PROGRAM))
os._exit(0)
"""
BESIDE = "replace(traced(kernel), peers=({},))"
PROGRAMS = {
    "for a machine with more memory": ("traced(kernel, 'trn3')", "it is for trn3, and trn2 is simulated"),
    "its other core for another machine": (BESIDE.format("traced(kernel, 'trn3')"), "it is for trn3, and trn2 is"),
    "its other core filling another machine's memory": (
        BESIDE.format("replace(traced(large, 'trn3'), machine='trn2')"),
        "NCC_INLA001",
    ),
    "its other core writing a parameter": (BESIDE.format("traced(writing)"), "writes to its parameter 0"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_not_choose_whose_limits_hold(name: str) -> None:
    """Sound for core 0, of another machine or with another core that the tracer would have refused."""
    program, said = PROGRAMS[name]
    with closing(SimulatorToolchain("trn2")) as toolchain, pytest.raises(CompileError, match=said):
        toolchain.compile(LEFT.replace("PROGRAM", program), [TensorArgument((128, 512), "float32")] * 2, 60.0)
