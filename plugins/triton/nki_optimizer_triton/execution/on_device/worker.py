"""The process that owns the GPU: it loads cubins, runs them on inputs, checks the memory around, and times them.

It has nothing of a candidate but machine code, and numbers of launches. Started by `execution/process.py`; answers one
message after the other until its pipe is closed, or until an error that the GPU's context does not survive: then it
says so and ends.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nki_optimizer_triton.execution.on_device.launching import LoadedKernel

Blobs = list[Any]


def main(tree: str, parent: str, packages: str = "") -> int:
    """`packages`: a folder with Python packages, searched first."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints, prints to nobody's answer
    sys.path[:] = [tree, *sys.path, str(Path(__file__).resolve().parents[3])]
    if packages:
        sys.path.insert(0, packages)
    from accelopt_core.judging.orphans import end_with_parent
    from nki_optimizer_triton.execution.messages import MessageLost, receive, send
    from nki_optimizer_triton.execution.on_device.calls import CudaError
    from nki_optimizer_triton.execution.on_device.timing import Late

    end_with_parent(int(parent))
    worker = Worker()
    while True:
        try:
            request, blobs = receive(sys.stdin.buffer)
        except MessageLost:
            return 0
        try:
            send(answers, *worker.answer(request, blobs))
        except CudaError as error:
            send(answers, {"error": "cuda", "call": error.call, "name": error.error, "kernel": worker.running})
            if error.is_sticky:
                return 3
        except Late:
            send(answers, {"error": "late"})
        except ImportError as error:
            send(answers, {"error": "missing", "message": str(error)})
        except Exception as error:  # the bindings raise what they like where there is no driver
            if worker.is_open:
                raise
            send(answers, {"error": "missing", "message": f"{type(error).__name__}: {error}"})


class Worker:
    """One device, the programs that it was given, and the inputs that it was given last."""

    def __init__(self) -> None:
        self._cuda: Any = None
        self._programs: dict[int, tuple[dict[str, Any], list[LoadedKernel]]] = {}
        self._inputs: list[bytearray] = []
        self._timer: Any = None
        self.running = ""
        """The kernel that was launched last, for whoever asks which one crashed."""

    @property
    def is_open(self) -> bool:
        return self._cuda is not None

    def answer(self, request: dict[str, Any], blobs: list[bytearray]) -> tuple[dict[str, Any], Blobs]:
        if request["do"] == "look":
            return self._look(), []
        if request["do"] == "open":
            return self._open(request["device"]), []
        if request["do"] == "load":
            return self._load(request, blobs), []
        if request["do"] == "unload":
            return self._unload(request["program"]), []
        if request["inputs"]:
            self._inputs = blobs
        return self._run(request) if request["do"] == "run" else self._time(request)

    # --- the device ---------------------------------------------------------------------------------

    def _look(self) -> dict[str, Any]:
        """At every GPU that CUDA shows. Nothing is allocated on any: others may be measuring there."""
        from nki_optimizer_triton.execution.on_device.calls import Cuda
        from nki_optimizer_triton.execution.on_device.clocks import Clocks
        from nki_optimizer_triton.execution.on_device.counters import why_no_counters

        cuda = Cuda()
        cuda("Init", 0)
        version = cuda("DriverGetVersion")
        found = []
        for number in range(cuda("DeviceGetCount")):
            facts = _facts(cuda, cuda("DeviceGet", number))
            clocks = Clocks(bytes.fromhex(facts["uuid"]))
            found.append(
                {
                    **facts,
                    "driver": f"{version // 1000}.{version % 1000 // 10}",
                    "clocks_unseen": clocks.why_not,
                    "nvml_driver": clocks.driver,
                    "counters_unseen": why_no_counters(),
                }
            )
        return {"gpus": found}

    def _open(self, number: int) -> dict[str, Any]:
        from nki_optimizer_triton.execution.on_device.calls import Cuda
        from nki_optimizer_triton.execution.on_device.clocks import Clocks

        cuda = Cuda()
        cuda("Init", 0)
        device = cuda("DeviceGet", number)
        cuda("CtxSetCurrent", cuda("DevicePrimaryCtxRetain", device))
        facts = _facts(cuda, device)
        self._stream = cuda("StreamCreate", int(cuda.driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._clocks = Clocks(bytes.fromhex(facts["uuid"]))
        self._l2_bytes = facts["l2_bytes"]
        self._cuda = cuda
        return {}

    # --- programs -----------------------------------------------------------------------------------

    def _load(self, request: dict[str, Any], blobs: list[bytearray]) -> dict[str, Any]:
        from nki_optimizer_triton.execution.on_device.launching import LoadedKernel

        plan = request["plan"]
        loaded = []
        for facts, cubin in zip(plan["kernels"], blobs):
            self.running = facts["name"]
            loaded.append(LoadedKernel(self._cuda, cubin, facts))
        self._programs[request["program"]] = (plan, loaded)
        return {"resident_blocks": [kernel.resident_blocks() for kernel in loaded]}

    def _unload(self, program: int) -> dict[str, Any]:
        for kernel in self._programs.pop(program, ({}, []))[1]:
            kernel.unload()
        return {}

    def _run(self, request: dict[str, Any]) -> tuple[dict[str, Any], Blobs]:
        import numpy as np

        from nki_optimizer_triton.execution.on_device.arena import GUARD_BYTES, Arena
        from nki_optimizer_triton.execution.on_device.calls import releasing
        from nki_optimizer_triton.execution.on_device.launching import Prepared, scratch_bytes

        plan, kernels = self._programs[request["program"]]
        arena = Arena(self._cuda, [buffer["bytes"] for buffer in plan["buffers"]], GUARD_BYTES, scratch_bytes(plan))
        with releasing(arena.free):
            arena.fill(request["pattern"], self._stream)
            for number in range(plan["inputs"]):
                arena.write(number, self._inputs[number], self._stream)
            self.running = _names(plan)
            Prepared(self._cuda, plan, kernels, arena).enqueue(self._stream)
            self._cuda("StreamSynchronize", self._stream)
            changed = [
                number
                for number in range(plan["inputs"])
                if number not in plan["in_place"]
                and not np.array_equal(arena.read(number), np.frombuffer(self._inputs[number], np.uint8))
            ]
            outside = [plan["buffers"][number]["name"] for number in arena.guards_changed(request["pattern"])]
            outputs = [arena.read(number).data for number in plan["outputs"]]
        return {"changed": changed, "outside": outside}, outputs

    def _time(self, request: dict[str, Any]) -> tuple[dict[str, Any], Blobs]:
        from nki_optimizer_triton.execution.on_device.arena import ALIGNMENT, Arena
        from nki_optimizer_triton.execution.on_device.calls import releasing
        from nki_optimizer_triton.execution.on_device.timing import Timer

        deadline = time.monotonic() + request["limit_s"]
        plan, kernels = self._programs[request["program"]]
        self.running = _names(plan)
        if self._timer is None:
            self._timer = Timer(self._cuda, self._stream, self._l2_bytes, self._clocks)
        inputs = Arena(self._cuda, [buffer["bytes"] for buffer in plan["buffers"][: plan["inputs"]]], ALIGNMENT)
        with releasing(inputs.free):
            for number in range(plan["inputs"]):
                inputs.write(number, self._inputs[number], self._stream)
            measured, outputs = self._timer.time(
                plan, kernels, inputs, request["warmup"], request["iterations"], deadline
            )
        return measured, [output.data for output in outputs]


def _facts(cuda: Any, device: Any) -> dict[str, Any]:
    names = cuda.driver.CUdevice_attribute

    def ask(name: str) -> int:
        return int(cuda("DeviceGetAttribute", getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

    return {
        "name": bytes(cuda("DeviceGetName", 256, device)).split(b"\0")[0].decode("utf-8", "replace"),
        "uuid": bytes(cuda("DeviceGetUuid", device).bytes).hex(),
        "capability": 10 * ask("COMPUTE_CAPABILITY_MAJOR") + ask("COMPUTE_CAPABILITY_MINOR"),
        "multiprocessors": ask("MULTIPROCESSOR_COUNT"),
        "clock_mhz": ask("CLOCK_RATE") / 1e3,
        "memory_bytes": int(cuda("DeviceTotalMem", device)),
        "l2_bytes": ask("L2_CACHE_SIZE"),
        "shared_bytes_per_block": ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    }


def _names(plan: dict[str, Any]) -> str:
    return ", ".join(dict.fromkeys(facts["name"] for facts in plan["kernels"]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
