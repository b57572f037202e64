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
    direct: list[NkiTensor] = []
    indirect: list[tuple[str, NkiTensor, np.ndarray]] = []
    is_index = False
    for operand, tensor in zip(template.operands, operands):
        if is_index:  # steers the operand before it, which has read it; compute never sees it
            is_index = False
            continue
        access = operand.access
        if tensor.indirection is not None:
            is_index = True
            gathered = gather(tensor, skips_out_of_bounds(attrs))
            indirect.append((access, tensor, gathered))
            arrays.append(gathered)
        elif access == "w" and operand.elements * operand.dtype.itemsize == tensor.storage.allocation.nbytes:
            arrays.append(tensor.array(about_to_overwrite=True))
        else:
            arrays.append(tensor.array())
        direct.append(tensor)
    if indirect and skips_out_of_bounds(attrs) and opcode.name != "dma_compute":
        _execute_skipping(opcode, arrays, direct, attrs)
    elif opcode.uses_psum_flags:
        opcode.compute(arrays, attrs, [psum_flags(t) for t in direct])
    else:
        opcode.compute(arrays, attrs)
    for access, tensor, values in indirect:
        if access != "r":
            put(tensor, values, skips_out_of_bounds(attrs))


def skips_out_of_bounds(attrs: Any) -> bool:
    """Whether the instruction ignores indices outside their dimension (`oob_mode.skip`)."""
    return getattr(getattr(attrs, "oob_mode", None), "name", "") == "skip"


def _execute_skipping(opcode: Opcode, arrays: list[np.ndarray], tensors: list[NkiTensor], attrs: Any) -> None:
    """A copy whose skipped elements leave the destination as it was, bit for bit.

    The same data movement on booleans tells which elements of the destination those are.
    """
    moved = [
        np.ones(array.shape, np.bool_)
        if tensor.indirection is None or at == 0
        else np.broadcast_to(_indices(tensor, True)[1], array.shape)
        for at, (array, tensor) in enumerate(zip(arrays, tensors))
    ]
    opcode.compute(moved, attrs)
    before = arrays[0].copy()
    opcode.compute(arrays, attrs)
    np.copyto(arrays[0], before, where=~moved[0])


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


def _indices(tensor: NkiTensor, skip: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Flat element numbers in the buffer of an indirect view, shaped like the view, and which are valid.

    `vector`: entry i (down the columns of the index tensor) replaces the position of row i, so the
    pattern's own step over rows does not count. Raises OutOfBounds naming the index when one is
    outside its dimension, unless `skip`.
    """
    indirection = tensor.indirection
    assert indirection is not None
    index = indirection.index.array().astype(np.int64)
    index = index.reshape(index.shape[0], -1).T.reshape(-1)
    rows = tensor.pattern[0][1] if indirection.kind == "vector" else 1
    if index.size < rows:
        raise NkiValidationError(f"{rows} rows of {tensor!r} need as many indices, got {index.size}")
    index = index[:rows]
    valid = (index >= 0) & (index < indirection.extent)
    if not skip and not valid.all():
        value = int(index[int(np.argmin(valid))])
        raise OutOfBounds(
            f"index {value} read on the device is outside dimension {indirection.dim} "
            f"(size {indirection.extent}) of {tensor!r}"
        )
    index = np.where(valid, index, 0)
    by_row = (rows,) + (1,) * (len(tensor.pattern) - 1)
    where = tensor.offset + (index * indirection.stride).reshape(by_row)
    for axis, (stride, size) in enumerate(tensor.pattern):
        if axis == 0 and indirection.kind == "vector":
            continue
        shape = [1] * len(tensor.pattern)
        shape[axis] = size
        where = where + (np.arange(size, dtype=np.int64) * stride).reshape(shape)
    return where, valid.reshape(by_row)


def gather(tensor: NkiTensor, skip: bool = False) -> np.ndarray:
    """The elements of an indirect view, as a new array; with `skip`, zero where the index is outside."""
    flat = tensor.storage.bytes().view(tensor.dtype.numpy)
    where, valid = _indices(tensor, skip)
    _check_reach(where, flat, tensor)
    values = flat[where]
    if not valid.all():
        values[~np.broadcast_to(valid, values.shape)] = 0
    return values


def put(tensor: NkiTensor, values: np.ndarray, skip: bool = False) -> None:
    flat = tensor.storage.bytes().view(tensor.dtype.numpy)
    where, valid = _indices(tensor, skip)
    _check_reach(where, flat, tensor)
    if valid.all():
        flat[where] = values
    else:
        chosen = np.broadcast_to(valid, where.shape)
        flat[where[chosen]] = values[chosen]


def _check_reach(where: np.ndarray, flat: np.ndarray, tensor: NkiTensor) -> None:
    if where.min() < 0 or where.max() >= flat.size:
        raise OutOfBounds(f"an index read on the device leads out of {tensor.storage.allocation.describe()}")


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
