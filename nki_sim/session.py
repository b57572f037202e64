"""Running a kernel's Python: the tracer that every `nki.isa` call reports to."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_sim.dtypes import DType, as_dtype
from nki_sim.errors import NkiError, NkiValidationError
from nki_sim.executor import execute_one
from nki_sim.memory import Allocation, MemoryRegion, Storage, check_allocation
from nki_sim.opcodes import Opcode
from nki_sim.program import Edge, Engine, Operand, Program, Template, TensorRef
from nki_sim.tensor import NkiTensor, whole

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_active = threading.local()

GENERATIONS = {
    "trn1": "trn1",
    "inf2": "trn1",
    "gen2": "trn1",
    "trn2": "trn2",
    "gen3": "trn2",
    "trn3": "trn3",
    "gen4": "trn3",
}


def target_machine() -> str:
    """The generation kernels are simulated for: NEURON_PLATFORM_TARGET_OVERRIDE, else trn2."""
    name = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    if name not in GENERATIONS:
        raise NkiError(f"NEURON_PLATFORM_TARGET_OVERRIDE={name}: one of {', '.join(GENERATIONS)}")
    return GENERATIONS[name]


class Instruction:
    """What an `nki.isa` call returns: a handle for explicit scheduling edges."""

    __slots__ = ("_tracer", "_index")

    def __init__(self, tracer: Tracer, index: int) -> None:
        self._tracer = tracer
        self._index = index

    def depends_on(self, *producers: Instruction) -> Instruction:
        for producer in producers:
            self._tracer.edges.append(Edge(producer._index, self._index))
        return self


class Tracer:
    """Records every instruction; with `numbers`, executes it at once as well."""

    def __init__(self, machine: str, numbers: bool, record: bool = True) -> None:
        self.machine = machine
        self.numbers = numbers
        self.record = record
        self.allocations: list[Allocation] = []
        self.constants: dict[int, np.ndarray] = {}
        self.templates: list[Template] = []
        self.edges: list[Edge] = []
        self.template_ids: list[int] = []
        self.operand_counts: list[int] = []
        self.operand_data: list[int] = []
        self.issued = 0
        self._numbers_of: dict[tuple[Any, ...], int] = {}
        self._computes: list[Opcode] = []

    def allocate(
        self,
        shape: Sequence[int],
        dtype: DType,
        region: MemoryRegion,
        name: str = "",
        contents: np.ndarray | None = None,
        address: tuple[int, ...] | None = None,
    ) -> NkiTensor:
        shape = tuple(int(n) for n in shape)
        check_allocation(region, shape, dtype)
        allocation = Allocation(len(self.allocations), region, shape, dtype, name, user_line(), self.issued, address)
        self.allocations.append(allocation)
        raw = None if contents is None else np.ascontiguousarray(contents).reshape(-1).view(np.uint8)
        return whole(Storage(allocation, raw))

    def emit(
        self,
        opcode: Opcode,
        engine: Engine,
        roles: tuple[str, ...],
        access: str,
        operands: tuple[NkiTensor, ...],
        attrs: Any = None,
    ) -> Instruction:
        """Check, record and (with numbers) execute one instruction.

        `roles`, `access` and `operands` run in parallel; indices of indirect operands are added here.
        Raises NkiValidationError when a rule is broken, with the kernel's line attached.
        """
        for tensor in operands:
            if tensor.indirection is not None:
                roles, access, operands = _with_indices(roles, access, operands)
                break
        line = user_line()
        key = (opcode.name, engine, attrs, line, roles, access, *[t.key for t in operands])
        number = self._numbers_of.get(key)
        if number is None:
            number = self._add_template(key, opcode, engine, roles, access, operands, attrs, line)
        index = self.issued
        self.issued = index + 1
        if self.record:
            self.template_ids.append(number)
            self.operand_counts.append(len(operands))
            data = self.operand_data
            for tensor in operands:
                data.append(tensor.storage.allocation.id)
                data.append(tensor.offset)
        if self.numbers:
            execute_one(opcode, self.templates[number], operands, attrs)
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
            tuple(
                Operand(
                    role,
                    how,
                    tensor.buffer,
                    tensor.dtype,
                    tensor.pattern,
                    tensor.partition_start,
                    tensor._partition_stride_elements if tensor.storage.on_chip else 0,
                    None
                    if tensor.indirection is None
                    else (
                        tensor.indirection.kind,
                        tensor.indirection.stride,
                        tensor.indirection.dim,
                        tensor.indirection.extent,
                    ),
                    tensor.offset % tensor._partition_stride_elements if tensor.buffer is MemoryRegion.psum else 0,
                )
                for role, how, tensor in zip(roles, access, operands)
            ),
            line,
        )
        opcode.check(template)
        self.templates.append(template)
        number = self._numbers_of[key] = len(self.templates) - 1
        return number

    def program(
        self,
        kernel_name: str,
        inputs: Sequence[NkiTensor],
        outputs: Sequence[NkiTensor],
        returns_tuple: bool,
        source_file: str,
    ) -> Program:
        starts = np.zeros(len(self.operand_counts) + 1, np.int64)
        np.cumsum(self.operand_counts, out=starts[1:])
        return Program(
            kernel_name,
            self.machine,
            tuple(self.templates),
            tuple(self.allocations),
            np.array(self.template_ids, np.int32),
            starts,
            np.array(self.operand_data, np.int64).reshape(-1, 2),
            tuple(_ref(t) for t in inputs),
            tuple(_ref(t) for t in outputs),
            returns_tuple,
            dict(self.constants),
            tuple(self.edges),
            source_file,
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


def user_line() -> int:
    """Line of the innermost frame that is not the simulator's."""
    frame = sys._getframe(2)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]  # ends in None, which ends the loop
    return 0


def current() -> Tracer:
    tracer: Tracer | None = getattr(_active, "tracer", None)
    if tracer is None:
        raise NkiError("nki.isa and nki.language work inside a kernel only: call it through nki.simulate(kernel)(...)")
    return tracer


@dataclass(frozen=True)
class TensorSpec:
    """A tensor argument known by shape and dtype only, for tracing without numbers."""

    shape: tuple[int, ...]
    dtype: DType


def run_kernel(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: dict[str, Any],
    *,
    numbers: bool,
    record: bool = True,
    machine: str | None = None,
) -> tuple[Program | None, Any, list[NkiTensor]]:
    """Run the kernel's Python once.

    Arguments may be NumPy arrays (with numbers), TensorSpecs (without) or plain constants.
    Returns the program (when recorded), what the kernel returned (tensors), and the tensor arguments.
    """
    outer = getattr(_active, "tracer", None)
    tracer = Tracer(machine or target_machine(), numbers, record)
    inputs: list[NkiTensor] = []

    def bind(name: str, value: Any) -> Any:
        if isinstance(value, TensorSpec):
            tensor = tracer.allocate(value.shape, value.dtype, MemoryRegion.shared_hbm, name)
        elif isinstance(value, np.ndarray):
            array = value if value.ndim else value.reshape(1)
            tensor = tracer.allocate(
                array.shape,
                as_dtype(array.dtype),
                MemoryRegion.shared_hbm,
                name,
                np.array(array, order="C") if numbers else None,
            )
        else:
            return value
        inputs.append(tensor)
        return tensor

    code = getattr(function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    _active.tracer = tracer
    try:
        bound = [bind(names[i] if i < len(names) else f"arg{i}", value) for i, value in enumerate(arguments)]
        bound_keywords = {name: bind(name, value) for name, value in keywords.items()}
        result = function(*bound, **bound_keywords)
    except NkiError as error:
        if error.line is None:
            error.line, error.file = _where(error, code)
        raise
    finally:
        _active.tracer = outer
    outputs = list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]
    for tensor in outputs:
        if not isinstance(tensor, NkiTensor):
            raise NkiValidationError(f"a kernel returns tensors in nl.shared_hbm, not {type(tensor).__name__}")
        if tensor.buffer is not MemoryRegion.shared_hbm:
            raise NkiValidationError(f"the returned {tensor!r} must be allocated with buffer=nl.shared_hbm")
    program = None
    if record:
        program = tracer.program(
            getattr(function, "__name__", "kernel"),
            inputs,
            outputs,
            isinstance(result, (tuple, list)),
            code.co_filename if code is not None else "",
        )
    return program, result, inputs


def _where(error: BaseException, code: Any) -> tuple[int | None, str | None]:
    """The innermost user frame of an error."""
    line = file = None
    traceback = error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if not name.startswith(_PACKAGE):
            line, file = traceback.tb_lineno, name
        traceback = traceback.tb_next
    return line, file


def trace(kernel: Any, *arguments: Any, machine: str | None = None, **keywords: Any) -> Program:
    """The kernel as a Program, without computing a number. Tensor arguments: TensorSpec or arrays."""
    program, _, _ = run_kernel(_plain(kernel), arguments, keywords, numbers=False, machine=machine)
    assert program is not None
    return program


def simulate(kernel: Any) -> Callable[..., Any]:
    """A callable that runs the kernel on NumPy arrays and returns NumPy arrays.

    Arrays that the kernel modifies are updated in place.
    """
    function = _plain(kernel)

    def call(*arguments: Any, **keywords: Any) -> Any:
        _, result, inputs = run_kernel(function, arguments, keywords, numbers=True, record=False)
        arrays = [a for a in (*arguments, *keywords.values()) if isinstance(a, np.ndarray)]
        for array, tensor in zip(arrays, inputs):
            after = whole(tensor.storage).array().reshape(array.shape)
            if array.flags.writeable and not np.array_equal(
                array.view(np.uint8) if array.ndim else array, after.view(np.uint8) if array.ndim else after
            ):
                array[...] = after
        if isinstance(result, (tuple, list)):
            return tuple(np.array(t.array()) for t in result)
        return None if result is None else np.array(result.array())

    return call


def _plain(kernel: Any) -> Callable[..., Any]:
    """The Python function behind an `@nki.jit` kernel."""
    return getattr(kernel, "__wrapped__", kernel)  # functools.wraps sets it
