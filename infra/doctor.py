"""What this machine can evaluate kernels with, and what to do about the rest. Shipped to the instance.

    python -m infra.doctor --machine NAME [--json] [--no-proof]

`examine` looks and changes nothing. It proves each toolchain it finds by judging one known kernel with
it, from compiling to timing, and compares the device's latency with the simulator's prediction.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

try:
    from accelopt_core.candidate import Candidate
    from accelopt_core.evaluation import Measured, Step, explain
    from accelopt_core.judging.judge import judge
    from accelopt_core.judging.reference.verification import BadReference, ReferenceCache
    from accelopt_core.ports import EvaluationLimits, EvaluationRequest
    from accelopt_core.task import ShapePreset, Task, Work
    from accelopt_core.toolchain import Toolchain, ToolchainMissing
    from infra.neuron.commands import Installation, this_machine
    from infra.neuron.compilation.known_kernel import KNOWN_KERNEL
    from infra.neuron.packages import Device, Listing, list_devices, system_versions
    from infra.neuron.profiling.profile_reader import NO_READER, TableReader, find_table_reader
    from infra.neuron.profiling.profiler import (
        JSON,
        KNOWN_SCHEMAS,
        SUMMARY_JSON,
        UNDOCUMENTED_FLAGS,
        Profiler,
        find_profiler,
        profile_schema,
    )
    from infra.neuron.routes import (
        SDK_OF_NKI,
        ProbeResult,
        instance_type,
        machine_of,
        nki_release,
        probe_all,
        relied_on,
        why_taken,
    )
    from infra.neuron.toolchain import open_neuron_toolchain
    from infra.simulator.toolchain import SimulatorToolchain, traced_on_simulator
    from nki_sim.machine import MACHINES
except ImportError as error:  # on a host that was not set up; a traceback would not say what to do
    raise SystemExit(
        f"{sys.executable} cannot examine this machine: {error}; give it what is missing (setup_trn2.sh does, or "
        f"`{sys.executable} -m pip install numpy ml_dtypes`)"
    ) from error

REPORT_VERSION = 2
LOW_DISK_BYTES = 5 << 30
"""Profiles of long kernels and the compiler's intermediate files need gigabytes."""
BELIEVABLE_RATIO = 3.0
"""Measured over predicted latency beyond this factor, either way, deserves a look."""

USABLE, UNUSABLE = 0, 4
"""Exit codes: a kernel can be evaluated as wanted; it cannot (the orchestrator's `target unreachable`)."""


@dataclass(frozen=True)
class Proof:
    """One toolchain, the known kernel, and what became of it."""

    toolchain: str
    simulated: bool
    right: bool
    latency_us: float | None
    said: str
    """One line for people."""
    took_s: float


@dataclass(frozen=True)
class DoctorReport:
    host: str
    unix_time_s: float
    """When it was written, on that machine's clock: the caller compares it with its own."""
    system: str
    python: str
    cpus: int
    memory_bytes: int
    disk_folder: str
    free_disk_bytes: int
    instance_type: str | None
    devices: tuple[Device, ...]
    packages: tuple[tuple[str, str], ...]
    """Neuron's system packages, the loaded driver, and the Python packages of the interpreter that compiles."""
    sdk: str | None
    profiler: str | None
    routes: tuple[ProbeResult, ...]
    toolchain: str | None
    """The Neuron toolchain that would be used; None where only the simulator works."""
    proofs: tuple[Proof, ...]
    missing: tuple[str, ...]
    """What a Neuron toolchain lacks here, one line each; of interest where one is expected."""
    problems: tuple[str, ...]
    """What is wrong and what to do about it, one line each."""
    taken: str | None = None
    """The route that kernels are compiled by, and why that one."""
    tables: tuple[str, ...] = ()
    """How profiles are read: in which format, by what, of which schema."""
    undocumented: tuple[str, ...] = ()
    """What is relied on here though AWS does not document it, and whether it was found, one line each."""
    version: int = REPORT_VERSION

    @property
    def evaluates_on_neuron(self) -> bool:
        return self.toolchain is not None and all(proof.right for proof in self.proofs if not proof.simulated)

    @property
    def expects_neuron(self) -> bool:
        """Something of Neuron is here, so that what is missing is a problem."""
        return bool(
            self.devices or self.profiler or self.instance_type or any(route.available for route in self.routes)
        )

    @property
    def simulates(self) -> bool:
        return all(proof.right for proof in self.proofs if proof.simulated)


# --- examining ------------------------------------------------------------------------------------


def examine(machine: str, installation: Installation | None = None, *, prove: bool = True) -> DoctorReport:
    """Look at everything; nothing missing is an exception.

    `machine`: which the simulator is to be, unless this is an instance of a known one.
    """
    where = installation or this_machine()
    routes = probe_all(where)
    packages = system_versions(where)
    chosen = next((route for route in routes if route.available), None)
    packages.update(chosen.versions if chosen else ())
    missing: list[str] = []
    listing = _devices(where, missing)
    devices = listing.devices if listing else ()
    profiler: Profiler | None = None
    try:
        profiler = find_profiler(where)
    except ToolchainMissing as error:
        missing.append(str(error))
    if chosen is None:
        missing += [f"{route.route}: {route.why_not}" for route in routes]
    tables: tuple[str, ...] = ()
    undocumented = [*(relied_on(chosen) if chosen else ()), *([listing.undocumented] if listing else ())]
    problems = []
    if profiler is not None:
        reader = find_table_reader(where) if profiler.writes_parquet else None
        tables, lacking = _tables(profiler, reader)
        problems += lacking
        undocumented += _undocumented(profiler)
    kind = instance_type(where)
    proofs = [_prove_simulator(machine_of(kind) or machine)] if prove else []
    problems += [f"the simulator: {proof.said}" for proof in proofs if not proof.right]
    toolchain = None
    if not missing:
        toolchain, proof, found = _prove_neuron(where, prove, proofs)
        proofs += proof
        problems += found
    if profiler is not None and not profiler.keeps_timed_outputs:
        problems.append(
            f"{profiler.path} keeps no outputs of timed executions, so that they are not compared with the verified "
            "ones: upgrade aws-neuronx-tools"
        )
    if "nrtpy" in packages and "nki" in packages:
        problems.append("nki and nrtpy share one environment, where they clash: move nrtpy to another")
    problems += _busy(devices)
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < LOW_DISK_BYTES:
        problems.append(
            f"{folder} has {free / (1 << 30):.1f} GiB free, {LOW_DISK_BYTES >> 30} are needed: set TMPDIR or clean up"
        )
    return DoctorReport(
        host=socket.gethostname(),
        unix_time_s=time.time(),
        system=platform.platform(),
        python=f"{sys.executable} ({platform.python_version()})",
        cpus=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        disk_folder=folder,
        free_disk_bytes=free,
        instance_type=kind,
        devices=devices,
        packages=tuple(sorted(packages.items())),
        sdk=SDK_OF_NKI.get(nki_release(packages.get("nki")) or (-1, -1)),
        profiler=str(profiler.path) if profiler is not None else None,
        routes=routes,
        toolchain=toolchain,
        proofs=tuple(proofs),
        missing=tuple(missing),
        problems=tuple(problems),
        taken=why_taken(routes),
        tables=tables,
        undocumented=tuple(line for line in undocumented if line),
    )


def _devices(where: Installation, missing: list[str]) -> Listing | None:
    if where.devices() == 0:
        missing.append(
            f"no Neuron device in {where.device_folder}: on a Trainium instance, load the driver (aws-neuronx-dkms)"
        )
        return None
    try:
        return list_devices(where)
    except ToolchainMissing as error:
        missing.append(str(error))
        return None


def _tables(profiler: Profiler, reader: TableReader | None) -> tuple[tuple[str, ...], list[str]]:
    """How a profile is read here, and what of it cannot be."""
    lines, problems = [], []
    can_read = f"{reader.package} of {reader.python}" if reader else NO_READER
    has_json = profiler.has_format(JSON)
    if has_json:
        lines.append(f"`view --output-format json`; Parquet, once that is gone: {can_read}")
    elif has_json is None:
        lines.append(f"`view --help` names no formats: json is tried, then Parquet: {can_read}")
    else:
        lines.append(f"Parquet, `view --output-format json` is gone: {can_read}")
        if reader is None:
            problems.append(f"no time per source line, and narrow dtypes by the summary only: {NO_READER}")
    if profiler.has_format(SUMMARY_JSON) is False:
        lines.append("`view --output-format summary-json` is gone: table Summary")
        if reader is None:
            problems.append(f"no latency can be read: {NO_READER}")
    schema = profile_schema(profiler)
    if schema is None:
        lines.append("schema: not told by --show-profile-schema")
    else:
        lines.append(f"schema {schema.version}, told by {profiler.name} {schema.asked}")
        first, last = KNOWN_SCHEMAS
        if not first <= int(schema.version.partition(".")[0]) <= last:
            problems.append(f"profile schema {schema.version} is not one of {first} to {last}, which were read")
        if schema.missing:
            problems.append(f"profile schema {schema.version} has no {', '.join(schema.missing)} in table Instruction")
    return tuple(lines), problems


def _undocumented(profiler: Profiler) -> list[str]:
    return [
        f"{profiler.name} capture {flag} ({why}): "
        + (
            "its --help lists it"
            if flag in profiler.capture_flags
            else "its --help does not list it, so it is not used"
        )
        for flag, why in UNDOCUMENTED_FLAGS.items()
    ]


def _busy(devices: tuple[Device, ...]) -> list[str]:
    return [
        f"device {device.number} is used by another process ({process}): cores may be taken and latencies disturbed"
        for device in devices
        for process in device.processes
    ]


def _prove_simulator(machine: str) -> Proof:
    simulator = SimulatorToolchain(machine)
    try:
        return _prove(simulator)
    finally:
        simulator.close()


def _prove_neuron(
    where: Installation, prove: bool, simulated: list[Proof]
) -> tuple[str | None, list[Proof], list[str]]:
    """The toolchain's name, its proof, and what is wrong with it."""
    try:
        neuron = open_neuron_toolchain(traced_on_simulator, installation=where)
    except ToolchainMissing as error:
        return None, [], [str(error)]
    try:
        if not prove:
            return neuron.name, [], []
        proof = _prove(neuron)
        return neuron.name, [proof], _problems_of([*simulated, proof])
    finally:
        neuron.close()


def _problems_of(proofs: list[Proof]) -> list[str]:
    measured = proofs[-1]
    if not measured.right:
        return [f"{measured.toolchain} fails on a kernel that is known to be right: {measured.said}"]
    predicted = next((proof for proof in proofs if proof.simulated), None)
    if predicted and predicted.latency_us and measured.latency_us:
        ratio = measured.latency_us / predicted.latency_us
        if not 1 / BELIEVABLE_RATIO < ratio < BELIEVABLE_RATIO:
            return [
                f"the known kernel takes {measured.latency_us:,.1f} µs, {ratio:.2g} times the predicted "
                f"{predicted.latency_us:,.1f} µs: is the core shared or throttled?"
            ]
    return []


def _prove(toolchain: Toolchain) -> Proof:
    started = time.monotonic()
    work = Work(matmul_flops=2 * 256 * 512 * 512, vector_ops=0, hbm_bytes=4 * (512 * 256 + 512 * 512 + 256 * 512))
    preset = ShapePreset("full", (("M", 256), ("K", 512), ("N", 512)), work)
    request = EvaluationRequest(
        task=Task("known_matmul", KNOWN_REFERENCE, (preset,), seeds=(0, 21)),
        candidate=Candidate("known", KNOWN_KERNEL),
        limits=EvaluationLimits(iterations=5, remeasure=1),
    )
    try:
        result = judge(request, toolchain, _quietly, ReferenceCache(None))
        said, latency_us = explain(result), result.latency_us if isinstance(result, Measured) else None
    except (ToolchainMissing, BadReference) as error:
        said, latency_us = str(error), None
    return Proof(
        toolchain.name,
        toolchain.simulated,
        latency_us is not None,
        latency_us,
        said,
        round(time.monotonic() - started, 2),
    )


def _quietly(step: Step, detail: str) -> None:
    """A proof takes seconds; nobody watches its steps."""


KNOWN_REFERENCE = """\
import numpy as np

M = 256
K = 512
N = 512


def get_inputs():
    return [np.random.normal(size=(K, M)).astype(np.float32), np.random.normal(size=(K, N)).astype(np.float32)]


def forward(lhs_t, rhs):
    return lhs_t.T @ rhs


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
"""


# --- telling --------------------------------------------------------------------------------------


def render(report: DoctorReport, *, neuron_wanted: bool = False, clock_skew_s: float | None = None) -> str:
    """A table for people; the problems and their remedies last."""
    gib = 1 << 30
    cores = sum(len(device.core_ids) for device in report.devices)
    free = f"{report.free_disk_bytes / gib:.1f} GiB free in {report.disk_folder}"
    rows = [
        ("host", f"{report.host}, {report.system}"),
        ("python", report.python),
        ("machine", f"{report.cpus} CPUs, {report.memory_bytes / gib:.0f} GiB memory, {free}"),
        ("instance", report.instance_type or "not a Neuron instance"),
        ("devices", f"{len(report.devices)} with {cores} NeuronCores" if report.devices else "none"),
    ]
    if clock_skew_s is not None:
        rows.append(("clock", f"{clock_skew_s:+.1f} s against this machine"))
    rows += [("package", f"{name} {version}") for name, version in report.packages]
    if report.sdk:
        rows.append(("SDK", f"{report.sdk} (told by its NKI)"))
    rows.append(("profiler", report.profiler or "none"))
    for route in report.routes:
        rows.append(
            (f"route {route.route}", f"works with {route.python}" if route.available else f"no: {route.why_not}")
        )
    if report.taken:
        rows.append(("route taken", report.taken))
    rows += [("profile tables", line) for line in report.tables]
    rows += [("undocumented", line) for line in report.undocumented]
    for proof in report.proofs:
        rows.append(("known kernel", f"{'right' if proof.right else 'FAILED'} on {proof.toolchain}: {proof.said}"))
    if report.expects_neuron or neuron_wanted:
        rows += [("missing", line) for line in report.missing]
    rows += [("problem", line) for line in report.problems]
    rows.append(("verdict", _conclusion(report)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _conclusion(report: DoctorReport) -> str:
    if report.evaluates_on_neuron:
        return f"kernels are evaluated on {report.toolchain}"
    if report.simulates:
        simulated = next((proof.toolchain for proof in report.proofs if proof.simulated), "the simulator")
        return f"kernels are evaluated on {simulated} only"
    return "kernels cannot be evaluated here"


def show(report: DoctorReport, *, neuron_wanted: bool = False, clock_skew_s: float | None = None) -> int:
    """Print it. The exit code says whether kernels can be evaluated: on a device where one is wanted."""
    print(render(report, neuron_wanted=neuron_wanted, clock_skew_s=clock_skew_s))
    return USABLE if report.evaluates_on_neuron or (report.simulates and not neuron_wanted) else UNUSABLE


def to_json(report: DoctorReport) -> str:
    return json.dumps(asdict(report))


def from_printed(text: str) -> DoctorReport:
    """The report of another machine, the last line of what it printed. Raises ValueError when it is none, or of another
    release."""
    try:
        data: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
        if data["version"] != REPORT_VERSION:
            raise ValueError(f"version {data['version']}, not {REPORT_VERSION}: client and host run different releases")
        return DoctorReport(
            **{
                **data,
                "devices": tuple(
                    Device(**{**d, "core_ids": tuple(d["core_ids"]), "processes": tuple(d["processes"])})
                    for d in data["devices"]
                ),
                "packages": _pairs(data["packages"]),
                "routes": tuple(
                    ProbeResult(**{**r, "versions": _pairs(r["versions"]), "folders": tuple(r.get("folders", ()))})
                    for r in data["routes"]
                ),
                "proofs": tuple(Proof(**proof) for proof in data["proofs"]),
                "missing": tuple(str(line) for line in data["missing"]),
                **{name: tuple(map(str, data[name])) for name in ("problems", "tables", "undocumented")},
            }
        )
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"not a doctor's report: {error}") from None


def _pairs(rows: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m infra.doctor", description="What can kernels be evaluated with here?"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--machine", required=True, choices=sorted(MACHINES), help="which to simulate")
    parser.add_argument("--no-proof", action="store_true", help="do not compile and run the known kernel")
    options = parser.parse_args(argv)
    report = examine(options.machine, prove=not options.no_proof)
    if options.json:
        print(to_json(report))
        return USABLE if report.evaluates_on_neuron or report.simulates else UNUSABLE
    return show(report)


if __name__ == "__main__":
    sys.exit(main())
