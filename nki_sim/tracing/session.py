"""Running a kernel's Python: the tracer that every `nki.isa` call reports to."""

from __future__ import annotations

import os
import sys
import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nki_sim.contract.opcodes import Opcode
from nki_sim.contract.operands import check_operands
from nki_sim.dtypes import DType, int32
from nki_sim.errors import DeviceValueMisused, NkiError, NkiValidationError
from nki_sim.execution.executor import Exchange, exchange, execute_one
from nki_sim.machine import DEFAULT_MACHINE, TARGETS
from nki_sim.program.allocations import Recorded
from nki_sim.program.memory import Allocation, MemoryRegion, Storage, layout
from nki_sim.program.program import Edge, Engine, Loop, Operand, Program, Template, TensorRef
from nki_sim.tracing.tensor import NkiTensor

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_active = threading.local()


def target_machine() -> str:
    """The generation kernels are simulated for: NEURON_PLATFORM_TARGET_OVERRIDE, else `DEFAULT_MACHINE`."""
    name = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", DEFAULT_MACHINE)
    if name not in TARGETS:
        raise NkiError(f"NEURON_PLATFORM_TARGET_OVERRIDE={name}: one of {', '.join(TARGETS)}")
    return TARGETS[name]


class Instruction:
    """What an `nki.isa` call returns: a handle for explicit scheduling edges."""

    __slots__ = ("_tracer", "_index")

    def __init__(self, tracer: Tracer, index: int) -> None:
        self._tracer = tracer
        self._index = index

    def depends_on(self, *producers: Instruction) -> Instruction:
        """This instruction starts after all `producers`, which must have been issued before it."""
        for producer in producers:
            self._tracer.add_edge(producer._index, self._index)
        return self


class Meeting(Protocol):
    """How the cores of one kernel take turns."""

    def meet(self, core: int, exchange: Exchange) -> None:
        """Wait until every core has reached its meeting point."""

    def alternate(self, core: int) -> None:
        """Let another core run until it comes to the same kind of place."""


class SharedMemory:
    """The shared_hbm of a kernel on several cores: the nth buffer that each core asks for is the same one."""

    def __init__(self, cores: int) -> None:
        self._buffers: list[tuple[Allocation, np.ndarray]] = []
        self._asked = [0] * cores

    def storage(self, core: int, allocation: Allocation, contents: np.ndarray | None) -> Storage:
        number = self._asked[core]
        self._asked[core] += 1
        if number == len(self._buffers):
            raw = Storage(allocation).writable() if contents is None else contents.copy()
            self._buffers.append((allocation, raw))
        first, raw = self._buffers[number]
        if (first.shape, first.dtype) != (allocation.shape, allocation.dtype):
            raise NkiValidationError(
                f"the cores disagree on shared_hbm tensor number {number}: {first.describe()} and "
                f"{allocation.describe()}; allocate shared tensors on every core, in the same order"
            )
        return Storage(allocation, raw)


class Tracer:
    """Records every instruction of one core; with `numbers`, executes it at once as well."""

    def __init__(
        self,
        machine: str,
        numbers: bool,
        core: int = 0,
        cores: int | None = None,
        shared: SharedMemory | None = None,
        meeting: Meeting | None = None,
    ) -> None:
        self.machine = machine
        self.numbers = numbers
        self.core = core
        self.cores = cores
        """Size of the launch grid; None when the kernel was called without one."""
        self.shared = shared
        self.meeting = meeting
        self.configuration: tuple[Any, Any] = (None, None)
        """compile_config and specialization_config of the kernel that runs (nki_sim.nki.compiler)."""
        self.allocations = Recorded()
        self.constants: dict[int, np.ndarray] = {}
        self.cache: dict[Any, NkiTensor] = {}
        """Tensors that language functions make once per kernel, e.g. identity matrices."""
        self.templates: list[Template] = []
        self.edges: list[Edge] = []
        self.loops: list[Loop] = []
        self.named: dict[str, list[int]] = {}
        self.marks = array("q")
        """Where its loops begin, go on and end: `loop_ir.marks`."""
        self.template_ids = array("i")
        self.operand_data = array("q")
        self._record_operand = self.operand_data.append
        self._numbers_of: dict[tuple[Any, ...], int] = {}

    @property
    def issued(self) -> int:
        return len(self.template_ids)

    def allocate(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        region: MemoryRegion,
        name: str = "",
        contents: np.ndarray | None = None,
        address: tuple[int, ...] | None = None,
    ) -> NkiTensor:
        """A new buffer. `contents` are its bytes' first value; they are not copied before they are written."""
        known = layout(region, tuple(shape), dtype)
        made = self.allocations
        allocation = Allocation(
            len(made), region, known.shape, dtype, name, user_line(), len(self.template_ids), address
        )
        made.append(allocation)
        raw = None if contents is None else np.ascontiguousarray(contents).reshape(-1).view(np.uint8)
        if self.shared is not None and region is MemoryRegion.shared_hbm:
            storage = self.shared.storage(self.core, allocation, raw)
        else:
            storage = Storage(allocation, raw, raw is None, known)
        return NkiTensor(storage, 0, known.pattern, dtype)

    def emit(
        self,
        opcode: Opcode,
        engine: Engine,
        roles: tuple[str, ...],
        access: str,
        operands: tuple[NkiTensor, ...],
        attrs: Any = None,
        name: str | None = None,
    ) -> Instruction:
        """Check, record and (with numbers) execute one instruction.

        `roles`, `access` and `operands` run in parallel; indices of indirect operands are added here.
        `name` is the kernel's own, for schedules. Raises NkiValidationError when a rule is broken, with
        the kernel's line attached.
        """
        frame = sys._getframe(1)
        while frame is not None and _is_ours(frame.f_code.co_filename):
            frame = frame.f_back  # type: ignore[assignment]  # ends in None, which ends the loop
        line = _FILES.otherwise if frame is None else frame.f_lineno
        parts: list[Any] = [opcode.name, engine, attrs, line, roles, access]
        for tensor in operands:
            if tensor.indirection is not None:
                roles, access, operands = _with_indices(roles, access, operands)
                parts = [opcode.name, engine, attrs, line, roles, access]
                for each in operands:
                    parts += each.key
                break
            parts += tensor.key
        key = tuple(parts)
        number = self._numbers_of.get(key)
        if number is None:
            number = self._add_template(key, opcode, engine, roles, access, operands, attrs, line)
        ids = self.template_ids
        index = len(ids)
        ids.append(number)
        record = self._record_operand
        for tensor in operands:
            record(tensor.storage.number)
            record(tensor.offset)
        if name is not None:
            self.named.setdefault(name, []).append(index)
        if self.numbers:
            storages = [tensor.storage for tensor in operands]
            offsets = [tensor.offset for tensor in operands]
            template = self.templates[number]
            meeting = self.meeting
            if opcode.meets is None or meeting is None:
                execute_one(opcode, template, storages, offsets, attrs)
                if meeting is not None and storages and storages[0].allocation.region is MemoryRegion.shared_hbm:
                    meeting.alternate(self.core)
            else:
                meeting.meet(self.core, exchange(opcode, template, storages, offsets))
        return Instruction(self, index)

    def _add_template(
        self,
        key: tuple[Any, ...],
        opcode: Opcode,
        engine: Engine,
        roles: tuple[str, ...],
        access: str,
        operands: tuple[NkiTensor, ...],
        attrs: Any,
        line: int,
    ) -> int:
        template = Template(
            opcode.name,
            engine,
            attrs,
            tuple(_operand(role, how, tensor) for role, how, tensor in zip(roles, access, operands)),
            line,
        )
        opcode.check(template)
        check_operands(template, opcode.contract)
        self.templates.append(template)
        number = self._numbers_of[key] = len(self.templates) - 1
        return number

    def forget_templates(self, left: int) -> None:
        """All but the first so many."""
        del self.templates[left:]
        while len(self._numbers_of) > left:
            self._numbers_of.popitem()  # the last that was added

    def add_edge(self, before: int, after: int) -> None:
        if before >= after:
            raise NkiValidationError(
                f"instruction {after} cannot depend on instruction {before}, which is issued after it"
            )
        self.edges.append(Edge(before, after))

    def add_schedule(self, schedule: Sequence[tuple[str, Any]]) -> None:
        """Edges by instruction name: (name, producer or producers). Raises NkiValidationError on unknown names."""
        for after, producers in schedule:
            for before in [producers] if isinstance(producers, str) else producers:
                for name in (after, before):
                    if len(self.named.get(name, ())) != 1:
                        raise NkiValidationError(
                            f"with_schedule names {name!r}, which {len(self.named.get(name, ()))} instructions have; "
                            "give exactly one of them name=..."
                        )
                self.add_edge(self.named[before][0], self.named[after][0])

    def program(
        self,
        kernel_name: str,
        inputs: Sequence[NkiTensor],
        outputs: Sequence[NkiTensor],
        returns_tuple: bool,
        source_file: str,
    ) -> Program:
        counts = np.array([len(t.operands) for t in self.templates] or [0], np.int64)
        ids = np.array(self.template_ids, np.int32)
        starts = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(counts[ids], out=starts[1:])
        return Program(
            kernel_name,
            self.machine,
            tuple(self.templates),
            self.allocations.so_far(),
            ids,
            starts,
            np.array(self.operand_data, np.int64).reshape(-1, 2),
            tuple(_ref(t) for t in inputs),
            tuple(_ref(t) for t in outputs),
            returns_tuple,
            dict(self.constants),
            tuple(self.edges),
            source_file,
            tuple(sorted(reversed(self.loops), key=lambda loop: (loop.start, -loop.end))),
            marks=np.array(self.marks, np.int64).reshape(-1, 4),
        )


def _operand(role: str, how: str, tensor: NkiTensor) -> Operand:
    steer = tensor.indirection
    return Operand(
        role,
        how,
        tensor.buffer,
        tensor.dtype,
        tensor.pattern,
        tensor.partition_start,
        tensor._partition_stride_elements if tensor.storage.on_chip else 0,
        None if steer is None else (steer.kind, steer.stride, steer.dim, steer.extent),
        tensor.offset % tensor._partition_stride_elements if tensor.buffer is MemoryRegion.psum else 0,
    )


def _with_indices(
    roles: tuple[str, ...], access: str, operands: tuple[NkiTensor, ...]
) -> tuple[tuple[str, ...], str, tuple[NkiTensor, ...]]:
    """Put each index tensor right behind the operand it steers."""
    out_roles: list[str] = []
    out_access: list[str] = []
    out_operands: list[NkiTensor] = []
    for role, how, tensor in zip(roles, access, operands):
        out_roles.append(role)
        out_access.append(how)
        out_operands.append(tensor)
        if tensor.indirection is not None:
            out_roles.append(f"{role}.index")
            out_access.append("r")
            out_operands.append(tensor.indirection.index)
    return tuple(out_roles), "".join(out_access), tuple(out_operands)


def _ref(tensor: NkiTensor) -> TensorRef:
    return TensorRef(tensor.storage.allocation.id, tensor.offset, tensor.pattern, tensor.dtype)


class _FilesOfOurs(dict[str, bool]):
    """Whether lines of a source file are passed over, by file name; filled as files are met."""

    only = ""
    """The file whose lines count; empty: any that is not the simulator's."""
    otherwise = 0
    """The line that counts for what is called from nowhere in that file."""

    def __missing__(self, file: str) -> bool:
        self[file] = file != self.only if self.only else file.startswith(_PACKAGE)
        return self[file]


_FILES = _FilesOfOurs()
_is_ours = _FILES.__getitem__


def count_lines_of(file: str) -> None:
    """What is issued in any other file counts for the line of this one that called into it."""
    _FILES.clear()
    _FILES.only = file


def count_the_rest_for(line: int) -> None:
    """What no line of that file called: a wrapper around the kernel did."""
    _FILES.otherwise = line


def user_line() -> int:
    """Line of the innermost frame that counts."""
    frame = sys._getframe(2)
    while frame is not None:
        if not _is_ours(frame.f_code.co_filename):
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]  # ends in None, which ends the loop
    return _FILES.otherwise


@dataclass(frozen=True)
class TensorSpec:
    """A tensor argument known by shape and dtype only, for tracing without numbers."""

    shape: tuple[int, ...]
    dtype: DType


def active() -> Tracer | None:
    """The tracer of the kernel that is running on this thread, if one is."""
    return getattr(_active, "tracer", None)


def current() -> Tracer:
    tracer: Tracer | None = getattr(_active, "tracer", None)
    if tracer is None:
        raise NkiError("nki.isa and nki.language work inside a kernel only: call it through nki.simulate(kernel)(...)")
    return tracer


class running:
    """Make a tracer the current one on this thread."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __enter__(self) -> None:
        self._outer = active()
        _active.tracer = self._tracer

    def __exit__(self, *_: object) -> None:
        _active.tracer = self._outer


def where(error: BaseException) -> tuple[int | None, str | None]:
    """Line and file of the innermost user frame of an error."""
    line = file = None
    traceback = error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if not _is_ours(name):
            line, file = traceback.tb_lineno, name
        traceback = traceback.tb_next
    return line, file


class VirtualRegister(NkiTensor):
    """One int32 that an engine's sequencer can branch on and add to an address."""

    __slots__ = ("_runs",)

    def __init__(self, tensor: NkiTensor, runs: bool) -> None:
        super().__init__(tensor.storage, tensor.offset, tensor.pattern, tensor.dtype)
        self._runs = runs

    def value(self) -> int:
        """The content, while a kernel runs with numbers. Raises DeviceValueMisused while it is only traced."""
        if not self._runs:
            raise DeviceValueMisused(
                "a register's value is not known while tracing: loop with nl.fori_loop or nl.while_loop instead of "
                "Python's if and while"
            )
        return int(self.storage.readable().view(np.int32)[0])

    def __bool__(self) -> bool:
        return self.value() != 0


def new_register(tracer: Tracer, value: int | None) -> VirtualRegister:
    """A register of the running kernel, with a first value when one is given and the kernel runs with numbers."""
    contents = None if value is None else np.array([[value]], np.int32)
    tensor = tracer.allocate((1, 1), int32, MemoryRegion.register, "register", contents if tracer.numbers else None)
    return VirtualRegister(tensor, tracer.numbers)
