"""Puts the pretend GPU in place: a folder of packages for the worker, its state, and the IR of its kernels."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from nki_optimizer_triton.artifact import TritonArtifact

STATE: dict[str, Any] = {
    "devices": 1,
    "other_names": {},  # of devices by number, where not all are of one kind
    "name": "NVIDIA H100 80GB HBM3",
    "capability": 90,
    "multiprocessors": 132,
    "memory_bytes": 1 << 30,
    "l2_bytes": 1 << 20,
    "shared_bytes": 232_448,
    "bytes_per_us": 2_000.0,  # of copies and fills
    "kernel_us": 40.0,  # a launch whose tensors are not in the cache
    "warm_us": 25.0,  # one whose tensors are
    "event_us": 0.5,  # resolution of an event
    "call_us": 3.0,  # what each call of the driver takes here
    "jitter": 0.0,  # share by which launches differ at most
    "drift": 0.0,  # share by which each launch is slower than the last
    "clocks_mhz": [1980],
    "throttle": 0,
    "nvml": "works",
    "fails": {},  # call without `cu` -> error
    "kernel_fails": {},  # kernel -> error that a later call is told
    "hangs": False,
    "hangs_in": [],  # kernels by name that never end
    "us_of": {},  # kernel by name -> time of a launch, cold or warm
    "writes_beyond": False,
    "right_launches": 1 << 60,  # after so many a kernel computes something else
}

_SHIM = f"""import sys
from pathlib import Path
sys.path.append({str(Path(__file__).resolve().parents[2])!r})
import triton_tests.pretend.{{module}} as pretend
{{state}}
sys.modules[__name__] = pretend
"""


class PretendGpu:
    def __init__(self, folder: Path, **state: Any) -> None:
        self.packages = folder / "packages"
        self._folder = folder
        (self.packages / "cuda/bindings").mkdir(parents=True)
        (folder / "kernels").mkdir()
        for package in ("cuda", "cuda/bindings"):
            (self.packages / package / "__init__.py").touch()
        where = f"pretend.STATE = Path({str(folder)!r})"
        (self.packages / "cuda/bindings/driver.py").write_text(_SHIM.format(module="driver", state=where))
        (self.packages / "pynvml.py").write_text(_SHIM.format(module="nvml", state=""))
        self.behave(**state)

    def behave(self, **state: Any) -> None:
        """From the next process on."""
        assert not set(state) - set(STATE)
        (self._folder / "state.json").write_text(json.dumps({**STATE, **state}))

    def knows(self, artifact: TritonArtifact) -> TritonArtifact:
        """Its kernels, by their machine code."""
        for kernel in artifact.distinct:
            (self._folder / "kernels" / hashlib.sha256(kernel.cubin).hexdigest()).write_text(kernel.ttir)
        return artifact

    def knows_by_name(self, artifact: TritonArtifact) -> None:
        """Its kernels, whoever compiles them anew: machine code names the file that it was made of."""
        for kernel in artifact.distinct:
            (self._folder / "kernels" / f"{kernel.name}.ttir").write_text(kernel.ttir)

    def without(self, package: str) -> None:
        """As a machine that has no such bindings; `package`: `cuda/bindings/driver` or `pynvml`."""
        (self.packages / f"{package}.py").write_text("raise ImportError('no such package here')\n")
