"""Operations that touch memory: pointers, masks, blocks, descriptors, atomics."""

from __future__ import annotations

import numpy as np

from nki_optimizer_triton.ir.faults import KernelFault, NotHere
from nki_optimizer_triton.ir.frames import BlockPointerValue, DescriptorValue, Frame
from nki_optimizer_triton.ir.memory import Memory
from nki_optimizer_triton.ir.numbers import decoded, encoded, held, rounded
from nki_optimizer_triton.ir.types import (
    FLOATS,
    BlockPointer,
    Descriptor,
    Element,
    Operation,
    Pointer,
    Pointers,
    Scalar,
    Tensor,
    element_bytes,
)


def pointee(operation: Operation, number: int = 0) -> Element:
    """Of an operand that is a pointer, or a tensor of them."""
    type_ = operation.operand_types[number]
    if isinstance(type_, (Scalar, Tensor)) and isinstance(type_.element, (Pointer, Pointers)):
        return type_.element.to
    raise KernelFault(f"{operation.name} of what is no pointer")


def added(operation: Operation, pointer: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """tt.addptr: the offset counts elements."""
    return pointer + offset.astype(np.int64) * element_bytes(pointee(operation))


def across(frame: Frame, array: np.ndarray) -> np.ndarray:
    """Numbers of the programs, with as many axes as an array of addresses."""
    return frame.programs.reshape((-1,) + (1,) * (array.ndim - 1))


def per_program(frame: Frame, *arrays: np.ndarray) -> list[np.ndarray]:
    """Each with one row for every program: what is stored, or added, is so by each of them."""
    return [np.broadcast_to(array, (frame.count, *array.shape[1:])) for array in arrays]


def load(memory: Memory, frame: Frame, operation: Operation) -> np.ndarray:
    first = frame.value(operation.operands[0])
    if isinstance(first, BlockPointerValue):
        return _load_block(memory, frame, operation, first)
    assert isinstance(first, np.ndarray)
    arrays = [frame.array(name) for name in operation.operands[1:]]
    mask = arrays[0] if arrays else None
    count = max([first.shape[0], *(array.shape[0] for array in arrays)])
    if memory.races is not None:
        count = frame.count
    addresses = np.broadcast_to(first, (count, *first.shape[1:]))
    found = memory.load(addresses, mask, pointee(operation), across(frame, first))
    if mask is not None and len(arrays) > 1:
        return np.where(mask, found, arrays[1])
    return found


def store(memory: Memory, frame: Frame, operation: Operation) -> None:
    first = frame.value(operation.operands[0])
    arrays = [frame.array(name) for name in operation.operands[1:]]
    if isinstance(first, BlockPointerValue):
        checked = operation.attributes.get("boundaryCheck", ())
        assert isinstance(checked, tuple)
        addresses, mask = block_addresses(frame, first, checked)
        memory.store(addresses, arrays[0], mask, first.element, across(frame, addresses))
        return
    assert isinstance(first, np.ndarray)
    addresses, values = per_program(frame, first, arrays[0])
    memory.store(addresses, values, arrays[1] if len(arrays) > 1 else None, pointee(operation), across(frame, first))


# --- blocks of arrays -------------------------------------------------------------------------------


def block_pointer(frame: Frame, operation: Operation) -> BlockPointerValue:
    """tt.make_tensor_ptr %base, [sizes], [strides], [offsets]."""
    type_ = operation.result_types[0]
    assert isinstance(type_, BlockPointer)
    arrays = [frame.array(name) for name in operation.operands]
    axes = (len(arrays) - 1) // 3
    parts = [tuple(arrays[1 + axes * n : 1 + axes * (n + 1)]) for n in range(3)]
    return BlockPointerValue(arrays[0], parts[0], parts[1], parts[2], type_.block.shape, type_.block.element)


def advanced(frame: Frame, operation: Operation) -> BlockPointerValue:
    """tt.advance %pointer, [offsets]."""
    first = frame.value(operation.operands[0])
    assert isinstance(first, BlockPointerValue)
    steps = [frame.array(name) for name in operation.operands[1:]]
    offsets = tuple(offset + step for offset, step in zip(first.offsets, steps))
    return BlockPointerValue(first.base, first.sizes, first.strides, offsets, first.block, first.element)


def block_addresses(
    frame: Frame, pointer: BlockPointerValue, checked: tuple[object, ...]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Of every element of a block, and which of them lie inside the array along the `checked` axes."""
    shape = (frame.count, *pointer.block)
    addresses = np.broadcast_to(_column(pointer.base, len(pointer.block)), shape)
    mask: np.ndarray | None = None
    for axis, size in enumerate(pointer.block):
        place = _places(pointer.offsets[axis], size, axis, len(pointer.block))
        stride = _column(pointer.strides[axis], len(pointer.block)).astype(np.int64)
        addresses = addresses + place * stride * element_bytes(pointer.element)
        if axis in checked:
            inside = (place >= 0) & (place < _column(pointer.sizes[axis], len(pointer.block)))
            mask = inside if mask is None else mask & inside
    return addresses, None if mask is None else np.broadcast_to(mask, shape)


def _load_block(memory: Memory, frame: Frame, operation: Operation, pointer: BlockPointerValue) -> np.ndarray:
    checked = operation.attributes.get("boundaryCheck", ())
    assert isinstance(checked, tuple)
    addresses, mask = block_addresses(frame, pointer, checked)
    found = memory.load(addresses, mask, pointer.element, across(frame, addresses))
    if mask is None:
        return found
    padding = {1: 0.0, 2: np.nan}.get(int(operation.attributes.get("padding", 0) or 0))  # type: ignore[arg-type]
    return np.where(mask, found, np.asarray(0 if padding is None else padding, held(pointer.element)))


def _column(array: np.ndarray, axes: int) -> np.ndarray:
    return array.reshape(array.shape[:1] + (1,) * axes)


def _places(offset: np.ndarray, size: int, axis: int, axes: int) -> np.ndarray:
    along = np.arange(size, dtype=np.int64).reshape((1,) * (axis + 1) + (size,) + (1,) * (axes - axis - 1))
    return _column(offset, axes).astype(np.int64) + along


# --- descriptors ------------------------------------------------------------------------------------


def descriptor(frame: Frame, operation: Operation) -> DescriptorValue:
    """tt.make_tensor_descriptor %base, [sizes], [strides]."""
    type_ = operation.result_types[0]
    assert isinstance(type_, Descriptor)
    arrays = [frame.array(name) for name in operation.operands]
    axes = (len(arrays) - 1) // 2
    padding = np.nan if operation.attributes.get("padding") in (2, "nan") or "nan" in operation.words else 0.0
    made = DescriptorValue(
        arrays[0],
        tuple(arrays[1 : 1 + axes]),
        tuple(arrays[1 + axes :]),
        type_.block.shape,
        type_.block.element,
        padding,
    )
    check_descriptor(made)
    return made


def check_descriptor(made: DescriptorValue) -> None:
    """What the hardware asks of one: 16-byte aligned base and strides, the last stride 1 (CUDA, cuTensorMapEncode)."""
    size = element_bytes(made.element)
    if (made.base & 15).any():
        raise KernelFault("a tensor descriptor's base must be a multiple of 16 bytes")
    if any(((stride.astype(np.int64) * size) & 15).any() for stride in made.strides[:-1]):
        raise KernelFault("a tensor descriptor's strides must be multiples of 16 bytes, all but the last")
    if made.strides and (made.strides[-1] != 1).any():
        raise KernelFault("a tensor descriptor's last stride must be 1")


def _descriptor_block(
    frame: Frame, made: DescriptorValue, offsets: list[np.ndarray], block: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Addresses and which of them lie inside. A block of fewer axes leaves the leading ones of size 1 out."""
    whole = (1,) * (len(made.sizes) - len(block)) + block
    pointer = BlockPointerValue(made.base, made.sizes, made.strides, tuple(offsets), whole, made.element)
    addresses, mask = block_addresses(frame, pointer, tuple(range(len(whole))))
    assert mask is not None
    return addresses.reshape(frame.count, *block), mask.reshape(frame.count, *block)


def descriptor_load(memory: Memory, frame: Frame, operation: Operation) -> np.ndarray:
    made, offsets = _described(frame, operation, 1)
    type_ = operation.result_types[0]
    assert isinstance(type_, Tensor)
    addresses, mask = _descriptor_block(frame, made, offsets, type_.shape)
    found = memory.load(addresses, mask, made.element, across(frame, addresses))
    return np.where(mask, found, np.asarray(made.padding if made.element in FLOATS else 0, held(made.element)))


def descriptor_store(memory: Memory, frame: Frame, operation: Operation) -> None:
    made, offsets, value = _described_with_value(frame, operation)
    addresses, mask = _descriptor_block(frame, made, offsets, value.shape[1:])
    memory.store(addresses, value, mask, made.element, across(frame, addresses))


def descriptor_reduce(memory: Memory, frame: Frame, operation: Operation) -> None:
    made, offsets, value = _described_with_value(frame, operation)
    addresses, mask = _descriptor_block(frame, made, offsets, value.shape[1:])
    kind = operation.words[0] if operation.words else "add"
    if kind == "add" and made.element in FLOATS:
        kind = "fadd"
    _changed(memory, frame, kind, addresses, value, mask, made.element, wanted=False)


def _described(frame: Frame, operation: Operation, first: int) -> tuple[DescriptorValue, list[np.ndarray]]:
    made = frame.value(operation.operands[0])
    assert isinstance(made, DescriptorValue)
    return made, [frame.array(name) for name in operation.operands[first : first + len(made.sizes)]]


def _described_with_value(frame: Frame, operation: Operation) -> tuple[DescriptorValue, list[np.ndarray], np.ndarray]:
    """`%descriptor[%offsets], %value`."""
    made, offsets = _described(frame, operation, 1)
    value = frame.array(operation.operands[1 + len(made.sizes)])
    return made, offsets, np.broadcast_to(value, (frame.count, *value.shape[1:]))


# --- atomics ----------------------------------------------------------------------------------------

_CHANGES = {
    "fadd": np.add, "add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


def atomic(memory: Memory, frame: Frame, operation: Operation, wanted: bool) -> np.ndarray:
    """tt.atomic_rmw: what was there before; zeros where nobody asks for it (`wanted`)."""
    pointer, value, *rest = (frame.array(name) for name in operation.operands)
    addresses, values = per_program(frame, pointer, value)
    kind = next((word for word in operation.words if word in (*_CHANGES, "umax", "umin", "exch")), "")
    return _changed(memory, frame, kind, addresses, values, rest[0] if rest else None, pointee(operation), wanted)


def _changed(
    memory: Memory,
    frame: Frame,
    kind: str,
    addresses: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray | None,
    element: Element,
    wanted: bool,
) -> np.ndarray:
    before = np.zeros(addresses.shape, held(element)).reshape(-1)
    flat = np.broadcast_to(values, addresses.shape).reshape(-1)
    for view, index, lanes in memory.places(addresses, mask, element, across(frame, addresses)):
        if not wanted and kind in _CHANGES and element in ("f32", "f64", "i32", "i64"):
            _CHANGES[kind].at(view, index, flat[lanes])
            continue
        for place, lane in zip(index.tolist(), lanes.tolist()):  # one after the other: each sees what the last one left
            old = decoded(view[place : place + 1], element)
            before[lane] = old[0]
            new = _one_change(kind, old, flat[lane : lane + 1], element)
            view[place : place + 1] = encoded(new, element)
    return before.reshape(addresses.shape)


def _one_change(kind: str, old: np.ndarray, value: np.ndarray, element: Element) -> np.ndarray:
    if kind == "exch":
        return value
    if kind in ("umax", "umin"):
        kind_unsigned = np.dtype(f"u{old.dtype.name}")
        choose = np.maximum if kind == "umax" else np.minimum
        return choose(old.view(kind_unsigned), value.view(kind_unsigned)).view(old.dtype)
    if kind not in _CHANGES:
        raise NotHere(f"the atomic operation {kind or 'of no name'} is executed on a GPU only")
    result = _CHANGES[kind](old, value)
    return rounded(result, element) if element in FLOATS else result


def compare_and_swap(memory: Memory, frame: Frame, operation: Operation) -> np.ndarray:
    """tt.atomic_cas: what was there before."""
    pointer, expected, value = (frame.array(name) for name in operation.operands)
    addresses, wanted, values = per_program(frame, pointer, expected, value)
    element = pointee(operation)
    before = np.zeros(addresses.shape, held(element)).reshape(-1)
    for view, index, lanes in memory.places(addresses, None, element, across(frame, addresses)):
        for place, lane in zip(index.tolist(), lanes.tolist()):
            old = decoded(view[place : place + 1], element)
            before[lane] = old[0]
            if old[0] == wanted.reshape(-1)[lane]:
                view[place : place + 1] = encoded(values.reshape(-1)[lane : lane + 1], element)
    return before.reshape(addresses.shape)
