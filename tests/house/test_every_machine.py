"""What every entry of `MACHINES` must have. What a new one is made of: docs/extending.md.

That every instruction has a cost on it is in test_every_instruction.py.
"""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import nki_sim
from accelopt_core.judging.bounds import bounds_for
from accelopt_core.languages.nki.dialect import Dialect
from accelopt_core.languages.nki.gaps import gaps_for
from accelopt_core.languages.nki.machine_facts import machine_facts
from accelopt_core.languages.nki.neuron_cores import NeuronCores
from accelopt_core.model.prompting import PROMPTS, render
from accelopt_core.task import PrecisionPolicy, ShapePreset, Task, Work
from infra import command_line
from infra.devices.leases import FOLDER_VARIABLE
from infra.devices.share import CORES_VARIABLE
from infra.judging.toolchains import open_toolchain
from infra.neuron.compilation.known_kernel import KNOWN_ARGUMENTS, KNOWN_KERNEL
from infra.neuron.toolchain import RUNTIME_VARIABLE, open_neuron_toolchain, share_of_this_host
from infra.simulator.toolchain import SimulatorToolchain, traced_on_simulator
from nki_sim import machine as table
from nki_sim.isa.generations import SINCE
from nki_sim.machine import MACHINES, TARGETS, Confidence, Machine, first_with
from nki_sim.nki import isa as nisa
from nki_sim.reference import api_reference, instruction_list
from nki_sim.tracing.session import target_machine
from tests.house.structure import ROOT
from tests.toolchains.pretend_sdk import PretendSdk

EVERY = pytest.mark.parametrize("core", MACHINES.values(), ids=MACHINES)
LONGEST_LINE = 110
NO_NUMBERS = ("name", "product", "calibration", "sources")
SYSTEMS = sorted(path.name for path in PROMPTS.glob("*_system.j2"))


@pytest.fixture(autouse=True)
def no_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))
    for variable in (CORES_VARIABLE, RUNTIME_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


@EVERY
def test_its_numbers_have_sources(core: Machine) -> None:
    for field in fields(core):
        if field.name not in NO_NUMBERS:
            source = core.sources[field.name]
            assert source.text.strip() and source.confidence in get_args(Confidence), field.name
    assert set(core.sources) <= {field.name for field in fields(core)}
    for field in fields(core):
        value = getattr(core, field.name)
        if type(value) in (int, float):
            assert math.isfinite(value) and (value > 0 or field.name.endswith("_cycles")), field.name


@EVERY
def test_its_names_are_its_own(core: Machine) -> None:
    assert MACHINES[core.name] is core
    others = [other for other in MACHINES.values() if other.name != core.name]
    assert core.product not in [other.product for other in others]
    assert getattr(table, core.name.upper(), None) is core, "its constant has its name"
    assert core.name in (ROOT / "README.md").read_text(encoding="utf-8"), "README.md says which there are"


@EVERY
def test_it_says_how_far_it_is_calibrated(core: Machine) -> None:
    line = core.calibration
    assert line.startswith("calibrated: " if core.calibrated else "not calibrated: ")
    assert "\n" not in line and len(line) <= LONGEST_LINE
    assert core.name in line


@EVERY
def test_its_targets_are_its_own(core: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its names in NEURON_PLATFORM_TARGET_OVERRIDE, its own name among them: that is what is set for the compiler."""
    assert core.name in core.targets
    taken = [target for other in MACHINES.values() if other.name != core.name for target in other.targets]
    assert not set(core.targets) & set(taken), "a name means one machine"
    for target in core.targets:
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
        assert TARGETS.get(target) == core.name == target_machine()


@EVERY
def test_its_published_peaks_are_held_by_a_test(core: Machine) -> None:
    text = (ROOT / "tests/nki_sim/machine/test_machine_facts.py").read_text(encoding="utf-8")
    assert f"({core.name.upper()}, " in text, "a row in test_the_peak_rates_follow_from_the_numbers"


@EVERY
def test_the_command_line_offers_it(core: Machine, tmp_path: Path) -> None:
    assert command_line.read(["--machine", core.name], {}, tmp_path).settings.target.machine == core.name


@EVERY
def test_prompts_and_api_text_are_of_it_and_of_no_other(core: Machine) -> None:
    """Of this machine and of no other, except where its numbers come from and since when something is there."""
    texts = [render("nki", system, machine=machine_facts(core), dialect=Dialect(), sweeps=False) for system in SYSTEMS]
    assert all(core.product in text and "{{" not in text for text in texts)
    texts += [api_reference(KNOWN_KERNEL, core.name), instruction_list(core.name)]
    said = "\n".join(line for text in texts for line in text.splitlines() if "get_nc_version" not in line)
    for expected in (core.calibration, *(first_with(version) for version in SINCE.values())):
        said = said.replace(expected, "")
    assert not [m.name for m in MACHINES.values() if m is not core and (m.product in said or m.name in said)]


@EVERY
def test_the_cores_of_a_host_are_known(core: Machine) -> None:
    assert share_of_this_host(core.name, 3).cores == tuple(range(3 * core.cores_per_device))


@EVERY
def test_an_instance_of_it_is_recognised(core: Machine, tmp_path: Path) -> None:
    sdk = PretendSdk(tmp_path)
    product = sdk.installation.system_folder / "devices/virtual/dmi/id/product_name"
    product.parent.mkdir(parents=True)
    product.write_text(f"{core.name}.48xlarge\n")
    toolchain = open_neuron_toolchain(traced_on_simulator, installation=sdk.installation)
    toolchain.close()
    assert toolchain.machine == NeuronCores(core) and toolchain.caveat == ""


@EVERY
def test_a_kernel_knows_where_it_runs(core: Machine) -> None:
    seen = []
    nki_sim.simulate(lambda: seen.append(nisa.get_nc_version()), machine=core.name)()
    assert [version.value for version in seen] == [core.neuron_core_version]
    assert f"{seen[0].name} ({core.name})" in str(nisa.get_nc_version.__doc__), "its docstring lists all of them"


@EVERY
def test_a_kernel_is_judged_on_it(core: Machine) -> None:
    """Traced, checked, run, costed, scheduled, held against bounds, and its gaps priced: as a judge does it."""
    toolchain = open_toolchain("simulator", language="nki", machine=core.name)
    assert isinstance(toolchain, SimulatorToolchain)
    try:
        assert (
            toolchain.machine == NeuronCores(core)
            and core.name in toolchain.name
            and core.name in toolchain.fingerprint
        )
        assert toolchain.caveat == ("" if core.calibrated else core.calibration)
        artifact = toolchain.compile(KNOWN_KERNEL, KNOWN_ARGUMENTS, 120)
        lhs_t, rhs = (np.full(argument.shape, 0.5, np.float32) for argument in KNOWN_ARGUMENTS)
        (result,) = toolchain.run(artifact, [lhs_t, rhs], 60)
        np.testing.assert_allclose(result, lhs_t.T @ rhs, rtol=1e-5)
        (latency_us,) = toolchain.time(artifact, [], 0, 1, 60).samples_us
        facts = toolchain.facts(artifact)
    finally:
        toolchain.close()
    task = Task("t", "", (ShapePreset("full", (("M", 256),)),))
    bound = bounds_for(task, facts, NeuronCores(core))
    assert 0 < bound.floor_us <= bound.peak_us
    assert facts.resource_bound_us is not None and bound.memory_us <= facts.resource_bound_us <= latency_us
    gaps = gaps_for(facts, bound, latency_us, NeuronCores(core))
    assert gaps and all(0 < gap.cost_us < latency_us for gap in gaps)


@EVERY
def test_its_peaks_can_be_computed_under_every_precision(core: Machine) -> None:
    work = Work(matmul_flops=10**12, vector_ops=10**6, hbm_bytes=10**6)
    narrower = [NeuronCores(core).bounds(work, policy).peak_us for policy in PrecisionPolicy]
    assert narrower == sorted(narrower, reverse=True) and narrower[-1] > 0
