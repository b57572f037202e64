"""Numbers: one instruction on its operands' bytes, and a whole program on input arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nki_sim.errors import NkiValidationError, OutOfBounds
from nki_sim.memory import Storage
from nki_sim.opcodes import OPCODES, Opcode
from nki_sim.program import Program, Template, TensorRef
from nki_sim.tensor import Indirection, NkiTensor


def execute_one(opcode: Opcode, template: Template, operands: Sequence[NkiTensor], attrs: Any) -> None:
    """Run one instruction. `operands` are in the template's order, index tensors included."""
    arrays: list[np.ndarray] = []
    scatter: list[tuple[NkiTensor, np.ndarray]] = []
    for operand, tensor in zip(template.operands, operands):
        access = operand.access
        if tensor.indirection is not None:
            gathered = gather(tensor)
            if access != "r":
                scatter.append((tensor, gathered))
            arrays.append(gathered)
        elif access == "w" and operand.elements * operand.dtype.itemsize == tensor.storage.allocation.nbytes:
            arrays.append(tensor.array(about_to_overwrite=True))
        else:
            arrays.append(tensor.array())
    if opcode.uses_psum_flags:
        opcode.compute(arrays, attrs, [psum_flags(t) for t in operands])
    else:
        opcode.compute(arrays, attrs)
    for tensor, values in scatter:
        put(tensor, values)


def psum_flags(tensor: NkiTensor) -> np.ndarray | None:
    """The accumulation flags behind a PSUM view, shaped like it; None elsewhere."""
    if tensor.buffer.value != "psum":
        return None
    storage = tensor.storage
    if storage.written is None:
        storage.written = np.zeros(storage.allocation.nbytes // tensor.dtype.itemsize, np.bool_)
    return np.ndarray(
        [n for _, n in tensor.pattern], np.bool_, storage.written, tensor.offset, [s for s, _ in tensor.pattern]
    )


def _indices(tensor: NkiTensor) -> np.ndarray:
    """Flat element numbers in the buffer of an indirect view, shaped like the view.

    Raises OutOfBounds naming the index when one is outside its dimension.
    """
    indirection = tensor.indirection
    assert indirection is not None
    where = np.full((), tensor.offset, np.int64)
    for axis, (stride, size) in enumerate(tensor.pattern):
        steps = np.arange(size, dtype=np.int64) * stride
        where = where[..., None] + steps
    index = indirection.index.array().astype(np.int64).reshape(-1)
    _check_range(index, indirection, tensor)
    if indirection.kind == "scalar":
        return where + int(index[0]) * indirection.stride
    rows = tensor.pattern[0][1]
    return where + (index[:rows] * indirection.stride).reshape((rows,) + (1,) * (len(tensor.pattern) - 1))


def _check_range(index: np.ndarray, indirection: Indirection, tensor: NkiTensor) -> None:
    bad = (index < 0) | (index >= indirection.extent)
    if bad.any():
        value = int(index[int(np.argmax(bad))])
        raise OutOfBounds(
            f"index {value} read on the device is outside dimension {indirection.dim} "
            f"(size {indirection.extent}) of {tensor!r}"
        )


def gather(tensor: NkiTensor) -> np.ndarray:
    flat = tensor.storage.bytes().view(tensor.dtype.numpy)
    return flat[_indices(tensor)]


def put(tensor: NkiTensor, values: np.ndarray) -> None:
    flat = tensor.storage.bytes().view(tensor.dtype.numpy)
    flat[_indices(tensor)] = values


def execute(program: Program, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a program on arrays, in the order of its tensor arguments; returns its outputs as new arrays.

    No Python of the kernel runs. A buffer is released after its last use. Raises NkiValidationError
    when the arrays do not fit the program.
    """
    if len(inputs) != len(program.inputs):
        raise NkiValidationError(f"{program.kernel_name} takes {len(program.inputs)} tensors, got {len(inputs)}")
    storages: list[Storage | None] = [None] * len(program.allocations)
    for number, contents in program.constants.items():
        storages[number] = Storage(program.allocations[number], np.array(contents).reshape(-1).view(np.uint8))
    for ref, array in zip(program.inputs, inputs):
        allocation = program.allocations[ref.allocation]
        if tuple(array.shape or (1,)) != allocation.shape or array.dtype != allocation.dtype.numpy:
            raise NkiValidationError(
                f"{program.kernel_name} wants {allocation.describe()}, got {list(array.shape)} {array.dtype}"
            )
        storages[ref.allocation] = Storage(allocation, np.array(array, order="C").reshape(-1).view(np.uint8))
    keep = {ref.allocation for ref in program.outputs}
    templates = program.templates
    opcodes = [OPCODES[template.opcode] for template in templates]
    starts = program.operand_starts.tolist()
    data = program.operand_data.tolist()
    last_use = program.last_use.tolist()
    for i, number in enumerate(program.template_ids.tolist()):
        template = templates[number]
        operands = []
        for j in range(starts[i], starts[i + 1]):
            buffer, offset = data[j]
            storage = storages[buffer]
            if storage is None:
                storage = storages[buffer] = Storage(program.allocations[buffer])
            operand = template.operands[j - starts[i]]
            operands.append(NkiTensor(storage, offset, operand.pattern, operand.dtype))
        _attach_indices(template, operands)
        execute_one(opcodes[number], template, operands, template.attrs)
        for j in range(starts[i], starts[i + 1]):
            buffer = data[j][0]
            if last_use[buffer] == i and buffer not in keep:
                storages[buffer] = None
    return [_read(program, storages, ref) for ref in program.outputs]


def _attach_indices(template: Template, operands: list[NkiTensor]) -> None:
    for at, operand in enumerate(template.operands):
        if operand.indirection is not None:
            kind, stride, dim, extent = operand.indirection
            operands[at].indirection = Indirection(kind, operands[at + 1], stride, dim, extent)


def _read(program: Program, storages: list[Storage | None], ref: TensorRef) -> np.ndarray:
    storage = storages[ref.allocation] or Storage(program.allocations[ref.allocation])
    return np.array(NkiTensor(storage, ref.offset, ref.pattern, ref.dtype).array())
