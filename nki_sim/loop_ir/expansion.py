"""A loop tree as a program's rows, without running any Python of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nki_sim.allocations import Recorded
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.reading import grid
from nki_sim.loop_ir.tree import Access, Allocate, Buffer, DeviceLoop, Instruction, Loop, LoopKernel, Node, Result
from nki_sim.memory import Allocation, MemoryRegion
from nki_sim.program import Bound, Operand, Program, Template, TensorRef
from nki_sim.program import Loop as DeviceLoopRows


@dataclass(frozen=True)
class _Size:
    """Of a stretch of nodes."""

    rows: int
    buffers: int

    def __add__(self, other: _Size) -> _Size:
        return _Size(self.rows + other.rows, self.buffers + other.buffers)


@dataclass(frozen=True)
class _Leaf:
    """An instruction or Allocate, in all passes of the loops around it."""

    node: Instruction | Allocate
    counters: Mapping[str, np.ndarray]
    rows: np.ndarray
    """int64 [passes]: instructions before it."""
    buffers: np.ndarray
    """int64 [passes]: buffers before it."""


class _Expansion:
    def __init__(self, kernel: LoopKernel) -> None:
        self._kernel = kernel
        self.leaves: list[_Leaf] = []
        self.loops: list[DeviceLoopRows] = []
        self.given = (*kernel.parameters, *kernel.standing)
        """Buffers that are there before the first instruction, numbered from 0."""

    def run(self) -> _Size:
        start = np.array([0]), np.array([len(self.given)])
        rows, buffers = self._block(self._kernel.body, (), {}, *start)
        return _Size(int(rows[0]), int(buffers[0]))

    def _block(
        self,
        body: Sequence[Node],
        around: tuple[Loop, ...],
        counters: Mapping[str, np.ndarray],
        rows: np.ndarray,
        buffers: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """`rows`, `buffers`: int64 [passes], how many there are before each pass of this block. Returns those after."""
        for node in body:
            if isinstance(node, Instruction):
                self.leaves.append(_Leaf(node, counters, rows, buffers))
                rows = rows + 1
            elif isinstance(node, Allocate):
                self.leaves.append(_Leaf(node, counters, rows, buffers))
                buffers = buffers + 1
            elif isinstance(node, DeviceLoop):
                start = int(rows[0])
                rows, buffers = self._block(node.body, around, counters, rows, buffers)
                self.loops.append(
                    DeviceLoopRows(
                        node.kind, start, int(rows[0]), node.counter, node.lower, node.upper, node.step, node.next
                    )
                )
            else:
                rows, buffers = self._loop(node, around, counters, rows, buffers)
        return rows, buffers

    def _loop(
        self,
        loop: Loop,
        around: tuple[Loop, ...],
        counters: Mapping[str, np.ndarray],
        rows: np.ndarray,
        buffers: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        inside = (*around, loop)
        inner = grid(inside)
        extents = np.broadcast_to(loop.extent.evaluate(counters), rows.shape)
        size = _size(loop.body)
        passes = len(inner[loop.variable])
        if size is not None:
            number = np.arange(passes) - np.repeat(np.cumsum(extents) - extents, extents)
            self._block(
                loop.body,
                inside,
                inner,
                np.repeat(rows, extents) + number * size.rows,
                np.repeat(buffers, extents) + number * size.buffers,
            )
            return rows + extents * size.rows, buffers + extents * size.buffers
        row_sizes, buffer_sizes = _sizes(loop.body, inside)
        before = np.cumsum(extents) - extents
        starts_of = []
        after = []
        for sizes, first in ((row_sizes, rows), (buffer_sizes, buffers)):
            ends = np.cumsum(sizes)
            begins = ends - sizes
            base = begins[np.minimum(before, passes - 1)] if passes else begins
            starts_of.append(np.repeat(first - base, extents) + begins)
            totals = np.add.reduceat(np.append(sizes, 0), np.minimum(before, passes)) * (extents > 0)
            after.append(first + totals)
        self._block(loop.body, inside, inner, starts_of[0], starts_of[1])
        return after[0], after[1]


def _size(body: Sequence[Node]) -> _Size | None:
    """None where it depends on a counter."""
    total = _Size(0, 0)
    for node in body:
        if isinstance(node, Instruction):
            total += _Size(1, 0)
        elif isinstance(node, Allocate):
            total += _Size(0, 1)
        else:
            inner = _size(node.body)
            if inner is None:
                return None
            if isinstance(node, Loop):
                if not node.extent.is_constant:
                    return None
                inner = _Size(inner.rows * node.extent.constant, inner.buffers * node.extent.constant)
            total += inner
    return total


def _sizes(body: Sequence[Node], around: tuple[Loop, ...]) -> tuple[np.ndarray, np.ndarray]:
    """int64 [passes of the innermost loop around]: instructions and buffers of one pass of the body."""
    counters = grid(around)
    count = len(counters[around[-1].variable])
    rows, buffers = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for node in body:
        if isinstance(node, Loop):
            inner_rows, inner_buffers = _sizes(node.body, (*around, node))
            extents = np.broadcast_to(node.extent.evaluate(counters), (count,))
            owner = np.repeat(np.arange(count), extents)
            rows += np.bincount(owner, inner_rows, count).astype(np.int64)
            buffers += np.bincount(owner, inner_buffers, count).astype(np.int64)
        elif isinstance(node, DeviceLoop):
            inner_rows, inner_buffers = _sizes(node.body, around)
            rows += inner_rows
            buffers += inner_buffers
        elif isinstance(node, Instruction):
            rows += 1
        else:
            buffers += 1
    return rows, buffers


class _Numbers:
    """Of the buffers that each Allocate makes."""

    def __init__(self, kernel: LoopKernel, given: Sequence[int], leaves: Sequence[_Leaf]) -> None:
        self._fixed = {key: number for number, key in enumerate(given)}
        self._made: dict[int, tuple[np.ndarray, list[int], np.ndarray]] = {}
        for leaf in leaves:
            if isinstance(leaf.node, Allocate):
                names = list(leaf.counters)
                lows = [int(leaf.counters[name].min()) for name in names]
                sizes = [int(leaf.counters[name].max()) + 1 - low for name, low in zip(names, lows)]
                table = np.full(sizes, -1, np.int64)
                table[tuple(leaf.counters[name] - low for name, low in zip(names, lows))] = (
                    leaf.buffers.reshape(-1) if names else leaf.buffers[0]
                )
                self._made[leaf.node.buffer] = (table, lows, leaf.buffers)

    def of(self, access: Access, counters: Mapping[str, np.ndarray], passes: int) -> np.ndarray:
        fixed = self._fixed.get(access.buffer)
        if fixed is not None:
            return np.full(passes, fixed, np.int64)
        table, lows, _ = self._made[access.buffer]
        index = tuple(each.evaluate(counters) - low for each, low in zip(access.tile, lows))
        return np.broadcast_to(table[index], (passes,)).astype(np.int64)


def expand(kernel: LoopKernel) -> Program:
    """The rows that a trace of the tree's text has, in their order.

    Raises IndexError for a tile that is never made.
    """
    expansion = _Expansion(kernel)
    size = expansion.run()
    recorded = Recorded()
    places: list[tuple[int, int, int]] = []
    """Of the buffers: number, key, instructions before it."""
    for number, key in enumerate(expansion.given):
        places.append((number, key, 0))
    for leaf in expansion.leaves:
        if isinstance(leaf.node, Allocate):
            places += zip(leaf.buffers.tolist(), [leaf.node.buffer] * len(leaf.buffers), leaf.rows.tolist())
    for number, key, row in sorted(places):
        buffer = kernel.buffers[key]
        recorded.append(
            Allocation(number, buffer.region, buffer.shape, buffer.dtype, buffer.name, buffer.line, row, buffer.address)
        )
    numbers = _Numbers(kernel, expansion.given, expansion.leaves)
    templates: list[Template] = []
    template_numbers: dict[tuple[object, ...], int] = {}
    ids = np.zeros(size.rows, np.int32)
    counts = np.zeros(size.rows, np.int64)
    instructions = [leaf for leaf in expansion.leaves if isinstance(leaf.node, Instruction)]
    for leaf in instructions:
        assert isinstance(leaf.node, Instruction)
        counts[leaf.rows] = len(leaf.node.operands)
    starts = np.zeros(size.rows + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    data = np.zeros((int(starts[-1]), 2), np.int64)
    for leaf in instructions:
        node = leaf.node
        assert isinstance(node, Instruction)
        passes = len(leaf.rows)
        where = np.zeros((passes, 2 * len(node.operands)), np.int64)
        for at, access in enumerate(node.operands):
            offsets = np.broadcast_to(access.offset.evaluate(leaf.counters), (passes,))
            data[starts[leaf.rows] + at, 0] = numbers.of(access, leaf.counters, passes)
            data[starts[leaf.rows] + at, 1] = offsets
            row = _partition_elements(kernel.buffers, access)
            if row:
                where[:, 2 * at] = offsets // row
                if kernel.buffers[access.buffer].region is MemoryRegion.psum:
                    where[:, 2 * at + 1] = offsets % row
        different, which = np.unique(where, axis=0, return_inverse=True)
        which = which.reshape(-1)
        made = []
        for place in different.tolist():
            template = _template(kernel.buffers, node, place)
            whole = (template.opcode, template.engine, template.attrs, template.operands, template.line)
            number = template_numbers.setdefault(whole, len(templates))
            if number == len(templates):
                templates.append(template)
            made.append(number)
        ids[leaf.rows] = np.array(made, np.int32)[which]
    constants = {
        number: np.asarray(kernel.buffers[key].contents)
        for number, key in enumerate(expansion.given)
        if kernel.buffers[key].contents is not None
    }
    return Program(
        kernel.name,
        kernel.machine,
        tuple(templates),
        recorded.so_far(),
        ids,
        starts,
        data,
        tuple(_whole(kernel, number, key) for number, key in enumerate(kernel.parameters)),
        tuple(
            TensorRef(_number_of(result_access(each), numbers), each.offset, each.pattern, each.dtype)
            for each in kernel.outputs
        ),
        kernel.returns_tuple,
        constants,
        (),
        kernel.source_file,
        tuple(_device_loops(kernel, expansion.loops, numbers)),
    )


def result_access(result: Result) -> Access:
    return Access("", "r", result.buffer, result.tile, Affine(result.offset), result.pattern, result.dtype)


def _number_of(access: Access, numbers: _Numbers) -> int:
    return int(numbers.of(access, {}, 1)[0])


def _device_loops(kernel: LoopKernel, loops: Sequence[DeviceLoopRows], numbers: _Numbers) -> list[DeviceLoopRows]:
    def register(key: int) -> int:
        if key < 0:
            return key
        buffer = kernel.buffers[key]
        return _number_of(Access("", "r", key, (), Affine(), ((1, 1),), buffer.dtype), numbers)

    def bound(given: Bound) -> Bound:
        return given if given.register is None else Bound(given.value, register(given.register))

    made = [
        DeviceLoopRows(
            loop.kind,
            loop.start,
            loop.end,
            register(loop.counter),
            bound(loop.lower),
            bound(loop.upper),
            loop.step,
            register(loop.next),
        )
        for loop in loops
    ]
    return sorted(reversed(made), key=lambda loop: (loop.start, -loop.end))


def _partition_elements(buffers: Mapping[int, Buffer], access: Access) -> int:
    """Elements of the access's dtype per partition; 0 off chip."""
    buffer = buffers[access.buffer]
    if not buffer.region.on_chip:
        return 0
    return buffer.partition_elements * buffer.dtype.itemsize // access.dtype.itemsize


def _template(buffers: Mapping[int, Buffer], node: Instruction, place: Sequence[int]) -> Template:
    operands = tuple(
        Operand(
            access.role,
            access.access,
            buffers[access.buffer].region,
            access.dtype,
            access.pattern,
            place[2 * at],
            _partition_elements(buffers, access),
            access.indirection,
            place[2 * at + 1],
        )
        for at, access in enumerate(node.operands)
    )
    return Template(node.opcode, node.engine, node.attrs, operands, node.line)


def template_of(buffers: Mapping[int, Buffer], node: Instruction) -> Template:
    """What it is where all counters are 0."""
    place = []
    for access in node.operands:
        row, offset = _partition_elements(buffers, access), access.offset.constant
        in_psum = row and buffers[access.buffer].region is MemoryRegion.psum
        place += [offset // row if row else 0, offset % row if in_psum else 0]
    return _template(buffers, node, place)


def _whole(kernel: LoopKernel, number: int, key: int) -> TensorRef:
    buffer = kernel.buffers[key]
    stride = 1
    pattern = []
    for n in reversed(buffer.shape):
        pattern.append((stride, n))
        stride *= n
    return TensorRef(number, 0, tuple(reversed(pattern)), buffer.dtype)
