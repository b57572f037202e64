"""Triton: an NVIDIA GPU, or this machine's CPU, which executes what was compiled for one and times nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accelopt_core.evaluation import CompilersOwn
from accelopt_core.languages.supported import HostNeeds, Supported
from accelopt_core.ports import EvaluationRequest
from accelopt_core.toolchain import Calibration, Toolchain, ToolchainMissing
from nki_optimizer_triton.gpu_share import PACKAGES_VARIABLE, RUNTIME_VARIABLES
from nki_optimizer_triton.language.language import TRITON
from nki_optimizer_triton.toolchain import open_triton_toolchain


def _open(
    name: str,
    *,
    machine: str,
    calibration: Calibration | None,
    memory_bytes: int,
    processes: int | None,
    told: Callable[[str], object],
) -> Toolchain:
    """`auto`: the GPU, where there is one, and else the CPU; `simulator`: the CPU."""
    if name == "simulator":
        return open_triton_toolchain(machine, on_device=False)
    if name == "auto":
        return open_triton_toolchain(machine, told=told)
    raise ToolchainMissing(f"no toolchain is named {name!r}: simulator or auto")


def _no_calibration(data: Mapping[str, Any] | None) -> Calibration | None:
    if data is not None:
        raise ValueError("no machine of Triton kernels is simulated, and so none is calibrated")
    return None


def _compilers_own(toolchain: Toolchain, request: EvaluationRequest) -> CompilersOwn:
    return CompilersOwn(None, "references are NumPy, and no compiler takes them to a GPU: not timed")


SUPPORTED = Supported(
    TRITON,
    __name__,
    _open,
    _no_calibration,
    "auto",
    HostNeeds(
        pythons=("python3", "/opt/conda/bin/python", "/opt/pytorch/bin/python"),  # AWS DLAMI and NGC images
        modules=(("triton",), ("cuda",)),
        tools="",
        name="Python with Triton and CUDA's bindings",
        remedy="pip install triton cuda-bindings there, or name a Python that has them with --remote-python",
    ),
    _compilers_own,
    variables=(*RUNTIME_VARIABLES, PACKAGES_VARIABLE),
)
