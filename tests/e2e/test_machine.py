"""The machine travels with the target: what a model reads, the bounds and the prices are of what it times on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.evaluation import Bounds, Measured, microseconds
from accelopt_core.languages.nki.neuron_cores import NeuronCores
from accelopt_core.task import PrecisionPolicy
from infra import command_line
from infra.assembly import run
from infra.devices.leases import FOLDER_VARIABLE
from infra.neuron.toolchain import open_neuron_toolchain
from infra.prediction.predictor import Predictor
from infra.runs.run_folder import RunFolder
from infra.simulator.toolchain import traced_on_simulator
from infra.tasks.seed_index import load_seed
from nki_sim.machine import TRN1, TRN2, Machine
from tests.e2e.run import orchestrate
from tests.e2e.test_model_run import LESSON, PLAN, SECRET
from tests.infra.tasks.test_kernel_wrapper import PretendDevice
from tests.llm.wire_server import SeenRequest, WireServer
from tests.toolchains.pretend_sdk import SIMULATED, PretendSdk

TASK = "silu"
PRESET = "small"
SEED = load_seed(TASK)
SOURCE = SEED.kernel_path.read_text(encoding="utf-8")
SAME = f"```python\n{SOURCE}```"
"""The kernel again: refused before it costs anything, so that a round is over after its plan."""
REPLIES = [PLAN, SAME, SAME, SAME, SAME, LESSON]
ROUND = ("--task", TASK, "--preset", PRESET, "--rounds", "1", "--max-repairs", "3")
_ROW = re.compile(r"^\| ([a-z-]+) \| (\S+) \| .* \| ([\d.,]+) µs \|$", re.M)


def bound_on(core: Machine) -> Bounds:
    work = small().full.work
    assert work is not None
    return NeuronCores(core).bounds(work, PrecisionPolicy.FLOAT32_FAITHFUL)


def reads_of(requests: list[SeenRequest], machine: str) -> None:
    """The prompts of planner and executor are of that machine, from its name to the prices of the menu."""
    planner, executor = requests[0], requests[1]
    for request in (planner, executor):
        assert "NeuronCore of Trainium1" in request.system and "Trainium2" not in request.system
        assert f"at {TRN1.tensor_clock_ghz} GHz" in request.system
        assert f"{TRN1.sbuf_partition_bytes} usable bytes" in request.system
        assert TRN1.calibration in request.system
    prompt = planner.last_user_message
    bound = bound_on(TRN1)
    of_trn2 = bound_on(TRN2)
    assert f"memory {microseconds(bound.memory_us)};" in prompt
    assert microseconds(bound.memory_us) != microseconds(of_trn2.memory_us)
    prices = menu_of(prompt)
    there = predicted(machine)
    assert prices and prices == {key: pytest.approx(there[key], rel=0.01) for key in prices}
    on_trn2 = predicted("trn2")
    assert any(us != pytest.approx(on_trn2[key], rel=0.02) for key, us in prices.items() if key in on_trn2)


def small():
    task = SEED.task()
    return replace(task, presets=task.presets[:1])


def menu_of(prompt: str) -> dict[tuple[str, str], float]:
    table = prompt.rpartition("## The menu")[2]
    return {(tool, site): float(us.replace(",", "")) for tool, site, us in _ROW.findall(table)}


def predicted(machine: str) -> dict[tuple[str, str], float]:
    """µs that each legal change to the kernel gains there, priced afresh."""
    predictor = Predictor(small(), machine)
    try:
        return {(step.name.rule, step.name.site): step.gain_us for step in predictor.single_steps(SOURCE).steps}
    finally:
        predictor.close()


@pytest.mark.slow
def test_a_simulated_trn1_is_read_of_as_trn1_and_said_not_to_be_calibrated(tmp_path: Path) -> None:
    with WireServer(REPLIES) as server:
        ran = orchestrate(
            *ROUND, "--machine", "trn1", folder=tmp_path,
            environment={"ANTHROPIC_API_KEY": SECRET, "ANTHROPIC_BASE_URL": server.url, "NKI_OPT_MENU_SECONDS": "60"},
        )  # fmt: skip
        assert ran.status == 0, ran.errors + ran.output
        reads_of(server.requests, "trn1")
    baseline = RunFolder(ran.folder).baseline()
    assert baseline is not None and "simulated trn1, uncalibrated" in baseline.result.machine
    assert baseline.result.profile.bounds == bound_on(TRN1)
    assert RunFolder(ran.folder).manifest().target.machine == "trn1"
    assert TRN1.calibration in ran.output and "uncalibrated simulated" in ran.output
    lines = [line for line in ran.output.splitlines() if " µs" in line and "simulated" in line]
    assert lines and all("uncalibrated simulated" in line for line in lines), "wherever a latency is shown"
    listed = orchestrate("runs", folder=tmp_path).output.splitlines()
    assert [line for line in listed if " µs" in line and "simulated trn1, uncalibrated" in line]


@pytest.mark.slow
def test_a_host_that_reports_trn1_is_read_of_as_trn1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = PretendSdk(tmp_path / "sdk", site=SIMULATED)
    product = tmp_path / "sdk/sys/devices/virtual/dmi/id/product_name"
    product.parent.mkdir(parents=True)
    product.write_text("trn1.32xlarge\n")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    target = PretendDevice(open_neuron_toolchain(traced_on_simulator, installation=sdk.installation))
    monkeypatch.setattr(run, "target_of", lambda settings: target)
    flags = (
        *ROUND, "--checkpoints", str(tmp_path / "runs"), "--memory", str(tmp_path / "memory.json"), "--view", "quiet",
        "--menu-seconds", "60", "--iterations", "1", "--remeasure", "0",
    )  # fmt: skip
    with WireServer(REPLIES) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        done = run.carry_out(command_line.read(flags, {}, tmp_path))
        reads_of(server.requests, "trn1")
    assert done.settings.target.machine == "trn2", "what would be simulated is another matter"
    assert done.folder.manifest().target.machine == "trn1"
    assert isinstance(done.result.baseline, Measured) and done.result.baseline.caveat == ""
    assert done.result.baseline.profile.bounds == bound_on(TRN1)
