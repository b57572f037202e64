"""A candidate compiled at one shape: its launch program, its kernels, and the plan by which both are carried out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from accelopt_core.toolchain import CompileError
from nki_optimizer_triton.compiling.compiled import CompiledKernel
from nki_optimizer_triton.execution.plan import distinct, plan_of
from nki_optimizer_triton.ir.executing import Kernel
from nki_optimizer_triton.ir.pointers import written_arguments
from nki_optimizer_triton.program.launch_program import DescriptorValue, Launch, LaunchProgram, TensorValue


@dataclass(frozen=True, eq=False)
class TritonArtifact:
    program: LaunchProgram
    kernels: tuple[CompiledKernel, ...]
    """One for each launch, in their order; the same object where launches share one."""
    plan: dict[str, Any]

    @property
    def distinct(self) -> list[CompiledKernel]:
        return distinct(self.kernels)

    @cached_property
    def adds_floats_atomically(self) -> bool:
        """Then sums depend on the order of a grid's programs, and two executions may differ in their last bits."""
        return any(Kernel(kernel.module).adds_floats_atomically for kernel in self.distinct)

    @cached_property
    def io_bytes(self) -> int:
        """All arguments and outputs once: the least that any kernel for this call must move."""
        buffers = self.program.buffers
        numbers = {*range(self.program.arguments), *(output.buffer for output in self.program.outputs)}
        return sum(buffers[number].nbytes for number in numbers)

    @cached_property
    def digest(self) -> str:
        """The same for candidates that differ in words only: of the launches, and of the kernels' IR without names."""
        steps = [{k: v for k, v in step.items() if k not in ("line", "names")} for step in self.plan["steps"]]
        program = [
            [buffer["bytes"] for buffer in self.plan["buffers"]],
            steps,
            [[o.buffer, o.dtype, o.offset, o.shape, o.strides] for o in self.program.outputs],
        ]
        options = [
            [launch.options.num_warps, launch.options.num_stages, launch.options.num_ctas, launch.options.maxnreg]
            for launch in self.program.launches
        ]
        texts = [normalized(kernel.ttir) for kernel in self.distinct]
        return hashlib.sha256(json.dumps([program, options, texts]).encode()).hexdigest()[:32]


def artifact_of(program: LaunchProgram, kernels: Sequence[CompiledKernel]) -> TritonArtifact:
    """Raises CompileError for a kernel that does not fit its launch, and for an argument that is returned unwritten."""
    plan = plan_of(program, kernels)
    written = _written_buffers(program, kernels)
    unwritten = program.in_place - written
    if unwritten:
        raise CompileError(
            f"the function returns its tensor argument {min(unwritten)}, which no kernel writes: return the tensors "
            "that kernels write"
        )
    return TritonArtifact(program, tuple(kernels), plan)


def _written_buffers(program: LaunchProgram, kernels: Sequence[CompiledKernel]) -> frozenset[int]:
    """Buffers that a kernel's stores may reach, by its IR, or that are filled."""
    found = {step.tensor.buffer for step in program.steps if not isinstance(step, Launch)}
    for launch, kernel in zip(program.launches, kernels):
        names = [name for name, _ in kernel.module.kernel.arguments]
        written = {names[number] for number in written_arguments(kernel.module)}
        from nki_optimizer_triton.compiling.compiled import argument_slots, runtime_arguments

        values = runtime_arguments(kernel, tuple(value for _, value in launch.arguments))
        for (_, value), (first, _) in zip(values, argument_slots(kernel, values)):
            tensor = value.tensor if isinstance(value, DescriptorValue) else value
            if isinstance(tensor, TensorValue) and names[first] in written:
                found.add(tensor.buffer)
    return frozenset(found)


_LOCATION = re.compile(r" loc\((?:[^()\"]|\"(?:[^\"\\]|\\.)*\"|\((?:[^()]|\([^()]*\))*\))*\)")
_VALUE = re.compile(r"%[\w$.-]+")


def normalized(ttir: str) -> str:
    """Without places in a file, and with values and functions numbered instead of named."""
    lines = [_LOCATION.sub("", line) for line in ttir.splitlines() if not line.startswith("#loc")]
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found.group(0), f"%{len(numbers)}")

    text = _VALUE.sub(number, "\n".join(line.strip() for line in lines))
    return re.sub(r"@[\w$.]+", lambda found: numbers.setdefault(found.group(0), f"@{len(numbers)}"), text)
