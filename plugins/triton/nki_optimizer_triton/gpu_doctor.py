"""What this machine can evaluate Triton kernels with, and what to do about the rest. Shipped to hosts.

    python -m nki_optimizer_triton.gpu_doctor --machine NAME [--json] [--no-proof]

`examine` looks and changes nothing. It proves the toolchain it finds by judging one known kernel with it, from tracing
to timing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any

try:
    from accelopt_core.candidate import Candidate
    from accelopt_core.evaluation import Measured, Step, Untimed, explain
    from accelopt_core.judging.judge import judge
    from accelopt_core.judging.reference.verification import BadReference, ReferenceCache
    from accelopt_core.ports import EvaluationLimits, EvaluationRequest
    from accelopt_core.task import ShapePreset, Task, Work
    from accelopt_core.toolchain import ToolchainMissing
    from nki_optimizer_triton.gpu_share import VisibleGpu
    from nki_optimizer_triton.language.gpus import GPUS, gpu_of_device
    from nki_optimizer_triton.toolchain import TritonToolchain, open_triton_toolchain
except ImportError as error:  # on a host that was not set up; a traceback would not say what to do
    raise SystemExit(
        f"{sys.executable} cannot examine this machine: {error}; give it what is missing (`{sys.executable} -m pip "
        "install numpy ml_dtypes triton cuda-bindings nvidia-ml-py`)"
    ) from error

REPORT_VERSION = 1
LOW_DISK_BYTES = 1 << 30
PACKAGES = ("triton", "cuda-bindings", "nvidia-ml-py", "torch", "numpy", "ml_dtypes")

USABLE, UNUSABLE = 0, 4
"""Exit codes, as those of infra/doctor.py."""


@dataclass(frozen=True)
class FoundGpu:
    number: int
    """As CUDA counts them here."""
    uuid: str
    """As `nvidia-smi -L` has it."""
    name: str
    machine: str
    """A key of `gpus.GPUS`; empty for one whose peak rates are not known."""
    capability: str
    """Compute capability, e.g. `9.0`."""
    multiprocessors: int
    memory_bytes: int


@dataclass(frozen=True)
class KernelProof:
    """What became of the known kernel."""

    toolchain: str
    right: bool
    latency_us: float | None
    """None where nothing could time it."""
    said: str
    took_s: float


@dataclass(frozen=True)
class GpuReport:
    host: str
    unix_time_s: float
    """When it was written, on that machine's clock: the caller compares it with its own."""
    system: str
    python: str
    cpus: int
    memory_bytes: int
    disk_folder: str
    free_disk_bytes: int
    packages: tuple[tuple[str, str], ...]
    """Of this interpreter."""
    gpus: tuple[FoundGpu, ...]
    cuda: str
    """The newest CUDA that the driver supports; empty where there is none."""
    driver: str
    """The driver's own version, where NVML tells it."""
    toolchain: str | None
    """That would be used; None where kernels cannot even be compiled."""
    on_gpu: bool
    proofs: tuple[KernelProof, ...]
    unseen: tuple[str, ...]
    """What a profile lacks here, and why, one line each."""
    missing: tuple[str, ...]
    """What stands between this machine and a GPU, one line each; of interest where one is wanted."""
    problems: tuple[str, ...]
    """What is wrong and what to do about it, one line each."""
    version: int = REPORT_VERSION

    @property
    def verifies(self) -> bool:
        return self.toolchain is not None and all(proof.right for proof in self.proofs)

    @property
    def evaluates_on_device(self) -> bool:
        return self.on_gpu and self.verifies

    def render(self, *, device_wanted: bool = False, clock_skew_s: float | None = None) -> str:
        """A table for people; the problems and their remedies last."""
        return _rendered(self, device_wanted, clock_skew_s)


# --- examining ------------------------------------------------------------------------------------


def examine(machine: str, *, prove: bool = True) -> GpuReport:
    """Look at everything; nothing missing is an exception. `machine`: compiled for where there is no GPU."""
    packages = {name: version for name in PACKAGES if (version := _version(name))}
    missing, problems = [], []
    toolchain: TritonToolchain | None = None
    try:
        toolchain = open_triton_toolchain(machine)
    except ToolchainMissing as error:
        problems.append(str(error))
    there: tuple[VisibleGpu, ...] = toolchain.gpus if toolchain is not None else ()
    proofs: list[KernelProof] = []
    try:
        if toolchain is not None:
            if toolchain.why_no_device:
                missing.append(toolchain.why_no_device)
                if "cuda-bindings" not in packages:
                    missing.append(f"cuda-bindings is not installed: {sys.executable} -m pip install cuda-bindings")
            if toolchain.caveat:
                problems.append(toolchain.caveat)
            if prove:
                proofs.append(_prove(toolchain))
                problems += [f"the known kernel: {proof.said}" for proof in proofs if not proof.right]
        folder = tempfile.gettempdir()
        free = shutil.disk_usage(folder).free
        if free < LOW_DISK_BYTES:
            problems.append(f"{folder} has {free / (1 << 30):.1f} GiB free, 1 is needed: set TMPDIR, or clean up")
        first = there[0].facts if there else {}
        return GpuReport(
            host=socket.gethostname(),
            unix_time_s=time.time(),
            system=platform.platform(),
            python=f"{sys.executable} ({platform.python_version()})",
            cpus=os.cpu_count() or 1,
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            disk_folder=folder,
            free_disk_bytes=free,
            packages=tuple(packages.items()),
            gpus=tuple(_found(gpu) for gpu in there),
            cuda=str(first.get("driver", "")),
            driver=str(first.get("nvml_driver", "")),
            toolchain=toolchain.name if toolchain is not None else None,
            on_gpu=toolchain is not None and toolchain.on_device,
            proofs=tuple(proofs),
            unseen=toolchain.unseen if toolchain is not None and toolchain.on_device else (),
            missing=tuple(missing),
            problems=tuple(problems),
        )
    finally:
        if toolchain is not None:
            toolchain.close()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _found(gpu: VisibleGpu) -> FoundGpu:
    facts = gpu.facts
    digits = str(facts["uuid"])
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return FoundGpu(
        gpu.number,
        "GPU-" + "-".join(parts),
        str(facts["name"]),
        _machine_of(gpu),
        f"{facts['capability'] / 10:g}",
        int(facts["multiprocessors"]),
        int(facts["memory_bytes"]),
    )


def _machine_of(gpu: VisibleGpu) -> str:
    facts = gpu.facts
    try:
        known = gpu_of_device(
            facts["name"], facts["capability"], facts["multiprocessors"], facts["clock_mhz"], facts["memory_bytes"],
            facts["l2_bytes"],
        )  # fmt: skip
    except KeyError:
        return ""
    return known.name if known.name in GPUS else ""


def _prove(toolchain: TritonToolchain) -> KernelProof:
    started = time.monotonic()
    work = Work(matmul_flops=0, vector_ops=2 * _ELEMENTS, hbm_bytes=8 * _ELEMENTS)
    request = EvaluationRequest(
        task=Task(
            "known_scale", KNOWN_REFERENCE, (ShapePreset("full", (("N", _ELEMENTS),), work),), seeds=(0, 21),
            language="triton",
        ),
        candidate=Candidate("known", KNOWN_KERNEL),
        limits=EvaluationLimits(iterations=5, remeasure=1),
    )  # fmt: skip
    latency_us: float | None = None
    try:
        result = judge(request, toolchain, _quietly, ReferenceCache(None))
        said, right = explain(result), isinstance(result, (Measured, Untimed))
        latency_us = result.latency_us if isinstance(result, Measured) else None
    except (ToolchainMissing, BadReference) as error:
        said, right = str(error), False
    return KernelProof(toolchain.name, right, latency_us, said, round(time.monotonic() - started, 2))


def _quietly(step: Step, detail: str) -> None:
    """A proof takes seconds; nobody watches its steps."""


_ELEMENTS = 100_000
"""No multiple of a block: the mask is proved too."""

KNOWN_KERNEL = '''\
"""y = 2 x + 1 in float32."""

import torch
import triton
import triton.language as tl


@triton.jit
def known_scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y + at, tl.load(x + at, mask=inside) * 2.0 + 1.0, mask=inside)


def run(x):
    y = torch.empty_like(x)
    n = x.numel()
    known_scale[(triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024)
    return y
'''

KNOWN_REFERENCE = f"""\
import numpy as np

N = {_ELEMENTS}


def get_inputs():
    return [np.random.normal(size=(N,)).astype(np.float32)]


def forward(x):
    return x * 2 + 1
"""


# --- telling --------------------------------------------------------------------------------------


def _rendered(report: GpuReport, device_wanted: bool, clock_skew_s: float | None) -> str:
    gib = 1 << 30
    free = f"{report.free_disk_bytes / gib:.1f} GiB free in {report.disk_folder}"
    rows = [
        ("host", f"{report.host}, {report.system}"),
        ("python", report.python),
        ("machine", f"{report.cpus} CPUs, {report.memory_bytes / gib:.0f} GiB memory, {free}"),
    ]
    for gpu in report.gpus:
        peaks = f"peak rates as {gpu.machine}" if gpu.machine else "peak rates not known"
        rows.append(
            (
                f"GPU {gpu.number}",
                f"{gpu.name}, compute capability {gpu.capability}, {gpu.multiprocessors} multiprocessors, "
                f"{gpu.memory_bytes / gib:.0f} GiB, {peaks}; {gpu.uuid}",
            )
        )
    if not report.gpus:
        rows.append(("GPU", "none"))
    if report.cuda:
        rows.append(("driver", f"{report.driver or 'version not told'}, for CUDA up to {report.cuda}"))
    if clock_skew_s is not None:
        rows.append(("clock", f"{clock_skew_s:+.1f} s against this machine"))
    rows += [("package", f"{name} {version}") for name, version in report.packages]
    for proof in report.proofs:
        rows.append(("known kernel", f"{'right' if proof.right else 'FAILED'} on {proof.toolchain}: {proof.said}"))
    rows += [("unseen", line) for line in report.unseen]
    rows += [("missing" if device_wanted else "no GPU", line) for line in report.missing]
    rows += [("problem", line) for line in report.problems]
    rows.append(("verdict", _conclusion(report)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _conclusion(report: GpuReport) -> str:
    if report.evaluates_on_device:
        return f"Triton kernels are evaluated on {report.toolchain}"
    if report.verifies and not report.on_gpu:
        return (
            "Triton kernels are compiled and verified by this machine's CPU and not timed: a run needs an NVIDIA GPU "
            "(orchestrator.py ubuntu@gpu-host --language triton)"
        )
    return "Triton kernels cannot be evaluated here"


def to_json(report: GpuReport) -> str:
    return json.dumps(asdict(report))


def from_printed(text: str) -> GpuReport:
    """The report of another machine, the last line of what it printed. Raises ValueError when it is none, or of another
    release."""
    try:
        data: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
        if data["version"] != REPORT_VERSION:
            raise ValueError(f"version {data['version']}, not {REPORT_VERSION}: client and host run different releases")
        return GpuReport(
            **{
                **data,
                "packages": tuple((str(name), str(version)) for name, version in data["packages"]),
                "gpus": tuple(FoundGpu(**gpu) for gpu in data["gpus"]),
                "proofs": tuple(KernelProof(**proof) for proof in data["proofs"]),
                **{name: tuple(map(str, data[name])) for name in ("unseen", "missing", "problems")},
            }
        )
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"not a doctor's report: {error}") from None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nki_optimizer_triton.gpu_doctor", description="What can Triton kernels be evaluated with here?"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--machine", required=True, choices=sorted(GPUS), help="to compile for without a GPU")
    parser.add_argument("--no-proof", action="store_true", help="do not compile and run the known kernel")
    options = parser.parse_args(argv)
    report = examine(options.machine, prove=not options.no_proof)
    print(to_json(report) if options.json else report.render())
    return USABLE if report.verifies else UNUSABLE


if __name__ == "__main__":
    sys.exit(main())
