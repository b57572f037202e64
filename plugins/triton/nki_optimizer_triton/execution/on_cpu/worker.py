"""The process that executes kernels' IR. It has inputs; it has no reference, no seed, no Python of a candidate's.

Started by `execution/process.py`; answers one message after the other, until its pipe is closed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from nki_optimizer_triton.ir.executing import Allowance, Argument, Kernel
    from nki_optimizer_triton.ir.memory import Memory

_PATTERN_OF_PADDING = {"zero": 0.0, "nan": float("nan")}


def main(tree: str, parent: str, memory_bytes: str) -> int:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints, prints to nobody's answer
    sys.path[:] = [tree, *sys.path, str(Path(__file__).resolve().parents[3])]
    from accelopt_core.judging.orphans import end_with_parent
    from infra.isolation.sandbox import ProcessLimits, limit_this_process
    from nki_optimizer_triton.execution.messages import MessageLost, receive, send
    from nki_optimizer_triton.ir.faults import KernelFault, NotHere
    from nki_optimizer_triton.ir.types import IrError

    end_with_parent(int(parent))
    limit_this_process(ProcessLimits(deadline_s=1e6, memory_bytes=int(memory_bytes), file_bytes=1 << 20))
    worker = Worker()
    while True:
        try:
            request, blobs = receive(sys.stdin.buffer)
        except MessageLost:
            return 0
        try:
            send(answers, *worker.answer(request, blobs))
        except KernelFault as fault:
            send(answers, {"error": "fault", "message": fault.message, "line": fault.line})
        except NotHere as reason:
            send(answers, {"error": "not here", "message": str(reason)})
        except MemoryError:
            send(answers, {"error": "memory", "message": "more memory than this machine has left"})
        except IrError as error:
            send(answers, {"error": "fault", "message": error.message, "line": error.line})


class Worker:
    """Keeps the programs that it was given, and the inputs that it was given last."""

    def __init__(self) -> None:
        self._programs: dict[int, tuple[dict[str, Any], list[Kernel]]] = {}
        self._inputs: list[bytearray] = []

    def answer(
        self, request: dict[str, Any], blobs: list[bytearray]
    ) -> tuple[dict[str, Any], list[bytes | memoryview]]:
        if request["do"] == "load":
            return self._load(request, blobs), []
        if request["do"] == "unload":
            del self._programs[request["program"]]
            return {}, []
        assert request["do"] == "run", request["do"]
        if request["inputs"]:
            self._inputs = blobs
        return self._run(request)

    def _load(self, request: dict[str, Any], blobs: list[bytearray]) -> dict[str, Any]:
        from nki_optimizer_triton.ir.executing import Kernel
        from nki_optimizer_triton.ir.reading import read_module

        kernels = [Kernel(read_module(blob.decode(), request["file"])) for blob in blobs]
        self._programs[request["program"]] = (request["plan"], kernels)
        return {"adds_floats_atomically": any(kernel.adds_floats_atomically for kernel in kernels)}

    def _run(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[bytes | memoryview]]:
        import numpy as np

        from nki_optimizer_triton.ir.executing import Allowance
        from nki_optimizer_triton.ir.memory import Memory

        plan, kernels = self._programs[request["program"]]
        memory, contents = Memory(), []
        for number, buffer in enumerate(plan["buffers"]):
            contents.append(memory.add(buffer["name"], buffer["bytes"]))
            if number < plan["inputs"]:
                contents[-1][:] = np.frombuffer(self._inputs[number], np.uint8)
            else:
                contents[-1][:] = request["pattern"]
        allowance = Allowance(request["most_work"], request["most_operations"])
        total = sum(buffer["bytes"] for buffer in plan["buffers"])
        for step in plan["steps"]:
            if "fill" in step:
                _fill(contents[step["fill"]], step)
            else:
                self._launch(step, kernels[step["launch"]], memory, allowance, request, total, plan)
        changed = [
            number
            for number in range(plan["inputs"])
            if number not in plan["in_place"]
            and not np.array_equal(contents[number], np.frombuffer(self._inputs[number], np.uint8))
        ]
        outputs: list[bytes | memoryview] = [contents[number].data for number in plan["outputs"]]
        return {"changed": changed, "outside": [], "work": allowance.spent}, outputs

    def _launch(
        self,
        step: dict[str, Any],
        kernel: Kernel,
        memory: Memory,
        allowance: Allowance,
        request: dict[str, Any],
        total: int,
        plan: dict[str, Any],
    ) -> None:
        from nki_optimizer_triton.ir.faults import KernelFault

        memory.names = {int(n): f"{name} ({plan['buffers'][int(n)]['name']})" for n, name in step["names"].items()}
        try:
            kernel.launch(
                tuple(step["grid"]),
                [_argument(memory, argument) for argument in step["arguments"]],
                memory,
                allowance,
                last_first=request["last_first"],
                look_for_races=request["races"],
                buffer_bytes=total,
            )
        except KernelFault as fault:
            raise KernelFault(f"kernel {kernel.name}: {fault.message}", fault.line) from None


def _fill(contents: np.ndarray, step: dict[str, Any]) -> None:
    import numpy as np

    element = np.frombuffer(bytes.fromhex(step["element"]), np.uint8)
    end = step["offset"] + step["count"] * len(element)
    contents[step["offset"] : end].reshape(-1, len(element))[:] = element


def _argument(memory: Memory, argument: dict[str, Any]) -> Argument:
    from nki_optimizer_triton.ir.executing import DescriptorArgument

    if argument["kind"] == "pointer":
        return memory.address(argument["buffer"]) + int(argument["offset"])
    if argument["kind"] == "descriptor":
        return DescriptorArgument(
            memory.address(argument["buffer"]) + int(argument["offset"]),
            tuple(argument["shape"]),
            tuple(argument["strides"]),
            _PATTERN_OF_PADDING[argument["padding"]],
        )
    if argument["kind"] == "float":
        return float.fromhex(argument["value"])
    return int(argument["value"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
