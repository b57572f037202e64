"""A calibration file is believed only whole, for its own target, and by the model it was fitted to; and it is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Installed, Measured
from accelopt_core.languages.nki.calibration import from_json
from accelopt_core.languages.nki.machine_facts import machine_facts
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import Task
from accelopt_core.toolchain import ToolchainMissing
from infra.calibration.constants import CONSTANTS
from infra.calibration.file import (
    BadCalibration,
    CalibrationRecord,
    Calibrations,
    ConstantRecord,
    KernelRecord,
    load,
    save,
)
from infra.judging import wire
from infra.neuron.toolchain import open_neuron_toolchain
from infra.simulator.toolchain import traced_on_simulator
from infra.ssh.job_records import request_key
from infra.targets.local import LocalTarget
from infra.tasks.seed_index import load_seed
from nki_sim.machine import TRN2
from nki_sim.timing.calibration import calibrated_machine, constant_of
from tests.calibration.devices import INSTALLED
from tests.e2e.run import orchestrate
from tests.toolchains.conftest import own_leases  # noqa: F401  # leases of this test's own
from tests.toolchains.pretend_sdk import SIMULATED, PretendSdk

ISSUE_NS, THROTTLE = 1500.0, 0.3


def record(installed: Installed = INSTALLED) -> CalibrationRecord:
    """Transfers issued much more slowly than shipped; the throttle measured, and not decided."""
    here = {"dma_software_issue_ns": ISSUE_NS, "throttle_utilization": THROTTLE}
    constants = tuple(
        ConstantRecord(
            each.name, constant_of(TRN2, each.name), here.get(each.name, constant_of(TRN2, each.name)),
            each.name != "throttle_utilization", 0.01,
        )
        for each in CONSTANTS
    )  # fmt: skip
    kernels = (KernelRecord("softmax", 30.0, 33.0, 30.1, "softmax"), KernelRecord("scan", None, 31.0, 31.0, said="no"))
    return CalibrationRecord("trn2", installed, "2026-11-03", "trn2-f00d", 420.0, "0.1.0", constants, kernels)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(Calibrations(tmp_path).path_of("trn2", INSTALLED), record())
    return tmp_path


def test_what_is_saved_is_what_is_loaded(folder: Path) -> None:
    (path,) = folder.iterdir()
    assert path.name == "trn2-2.32-nki_0.6.1.json" and load(path) == record()


def test_only_what_was_decided_changes_the_machine_and_it_says_where_that_comes_from() -> None:
    core = calibrated_machine("trn2", record().calibration())
    assert core.dma_software_issue_ns == ISSUE_NS and core.throttle_utilization == TRN2.throttle_utilization
    assert core.calibration.startswith("calibrated: ") and len(core.calibration) <= 110
    for word in ("trn2", "2026-11-03", "trn2.3xlarge"):
        assert word in core.calibration
    source = core.sources["dma_software_issue_ns"]
    assert source.confidence == "fitted" and "2026-11-03 on trn2.3xlarge" in source.text
    assert core.sources["throttle_utilization"] == TRN2.sources["throttle_utilization"]
    assert TRN2.dma_software_issue_ns != ISSUE_NS, "nobody else's machine has changed"
    assert machine_facts(core).dma_plain_issue_us == 2.04 and machine_facts(core).priced_from == core.calibration
    assert machine_facts(TRN2).priced_from == "fitted to published measurements"


@pytest.mark.parametrize(
    ("machine", "installed", "found"),
    [
        ("trn2", INSTALLED, True),
        ("trn2", replace(INSTALLED, instance="trn2.48xlarge"), True),
        ("trn2", replace(INSTALLED, sdk="2.33"), False),
        ("trn2", replace(INSTALLED, compiler="nki 0.6.2"), False),
        ("trn1", INSTALLED, False),
    ],
)
def test_a_device_finds_its_own(machine: str, installed: Installed, found: bool, folder: Path) -> None:
    assert (Calibrations(folder).for_device(machine, installed) is not None) is found
    assert Calibrations(folder, shipped=True).for_device(machine, installed) is None
    assert Calibrations(folder).for_simulator(machine) is None, "a simulated machine is as shipped unless asked"


def _constant(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: next(
        each for each in document["constants"] if each["name"] == "dma_software_issue_ns"
    ).update(changes)


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another version": (lambda document: document.update(version=9), "version 9"),
    "an unknown machine": (lambda document: document.update(machine="trn9"), "'trn9'"),
    "an unknown constant": (_constant(name="dma_magic_ns"), "dma_magic_ns"),
    "no number": (_constant(value="fast"), "is no calibration"),
    "not a number": (_constant(value=float("nan")), "dma_software_issue_ns = nan"),
    "out of range": (_constant(value=1e6), "not within 10 to 3000"),
    "below its range": (_constant(value=-600.0), "not within 10 to 3000"),
    "another release's model": (_constant(shipped=611.0), "another release's model"),
    "a field less": (lambda document: document.pop("constants"), "is no calibration"),
    "constants of another kind": (lambda document: document.update(constants={}), "is no calibration"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_file_is_refused_by_name_with_what_to_do(what: str, folder: Path) -> None:
    damage, says = DAMAGE[what]
    (path,) = folder.iterdir()
    document = json.loads(path.read_text())
    damage(document)
    path.write_text(json.dumps(document))
    with pytest.raises(BadCalibration, match=says) as raised:
        Calibrations(folder).for_device("trn2", INSTALLED)
    said = str(raised.value)
    assert str(path) in said and "\n" not in said and "orchestrator.py calibrate" in said and "--shipped-model" in said


def test_a_file_of_another_target_under_this_ones_name_is_refused(folder: Path) -> None:
    save(Calibrations(folder).path_of("trn2", INSTALLED), record(replace(INSTALLED, sdk="2.31")))
    with pytest.raises(BadCalibration, match="of another device"):
        Calibrations(folder).for_device("trn2", INSTALLED)


@pytest.mark.parametrize(
    "changes",
    [
        {"line": "not calibrated: trn2"},
        {"line": "calibrated: " + "x" * 110},
        {"line": "calibrated: a\nb"},
        {"machine": "trn9"},
        {"constants": [["dma_start_ns", "fast"]]},
        {"constants": [["sources", 1.0]]},
        {"constants": [["rates.tensor_tensor.colour", 1.0]]},
        {"constants": [["dma_start_ns", float("inf")]]},
    ],
)
def test_a_job_with_a_calibration_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    data = {**asdict(record().calibration()), **changes}
    with pytest.raises((ValueError, TypeError, KeyError)):
        from_json(data)


SLOWER = record().calibration()


def small() -> tuple[Task, Candidate]:
    seed = load_seed("silu")
    return replace(seed.task(), presets=seed.task().presets[:1], seeds=(0,)), Candidate("c", seed.kernel_source)


@pytest.mark.slow
def test_a_simulated_latency_is_of_the_calibrated_machine_and_named_so() -> None:
    request = EvaluationRequest(*small())
    found: list[Measured] = []
    names, fingerprints = [], []
    for calibration in (None, SLOWER):
        target = LocalTarget("simulator", "trn2", calibration)
        info = target.describe()
        result = target.evaluate(request, lambda step, detail: None)
        target.close()
        assert isinstance(result, Measured) and result.machine == info.name and result.caveat == ""
        found.append(result)
        names.append(info.name)
        fingerprints.append(info.fingerprint)
    assert found[1].latency_us > 1.2 * found[0].latency_us
    assert "calibrated on 2026-11-03 on trn2.3xlarge" in names[1] and "calibrated" not in names[0]
    assert fingerprints[0] != fingerprints[1], "latencies of the two are never taken for each other"
    issuing = [{gap.name: gap for gap in each.profile.gaps}.get("issuing transfers") for each in found]
    assert issuing[1] is not None and "2.04 µs apart" in issuing[1].evidence, "gaps are priced by it too"


def test_a_device_is_judged_by_its_own_constants_and_by_no_others(tmp_path: Path) -> None:
    installation = PretendSdk(tmp_path, site=SIMULATED).installation
    toolchain = open_neuron_toolchain(traced_on_simulator, installation=installation, calibration=SLOWER)
    toolchain.close()
    assert toolchain.model.dma_software_issue_ns == ISSUE_NS
    assert toolchain.installed == Installed("2.32", "nki 0.6.1+simulated", "trn2.3xlarge")
    with pytest.raises(ToolchainMissing, match="does not fit this device"):
        open_neuron_toolchain(
            traced_on_simulator, installation=installation, calibration=replace(SLOWER, machine="trn1")
        )


def test_a_calibration_travels_with_its_job_and_parts_it_from_others() -> None:
    request = EvaluationRequest(*small())
    job = wire.Job(request, "n", "simulator", "trn2", "c0ffee", SLOWER)
    assert wire.decode_job(wire.encode_job(job)) == job
    keys = {request_key(request, "simulator", "trn2", calibration) for calibration in (None, SLOWER)}
    assert len(keys) == 2 and request_key(request, "simulator", "trn2") in keys


@pytest.mark.slow
def test_a_run_by_a_calibration_says_so_wherever_it_shows_a_latency(folder: Path) -> None:
    (path,) = folder.iterdir()
    ran = orchestrate(
        "--task", "silu", "--preset", "small", "--rounds", "1", "--provider", "catalogue", "--calibration", str(path),
        "--view", "plain", folder=folder,
    )  # fmt: skip
    assert ran.status == 0, ran.errors
    label = "calibrated on 2026-11-03 on trn2.3xlarge"
    assert ran.output.count(label) >= 3, "the beginning, each evaluation, the report"
    assert record().calibration().line in ran.output
    assert ran.document("manifest.json")["target"]["calibration"]["on"] in label
    listed = orchestrate("runs", folder=folder)
    assert label in listed.output
