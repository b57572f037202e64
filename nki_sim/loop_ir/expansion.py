"""A loop tree as a program's rows, without running any Python of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nki_sim.by_object import MOST_KEPT, by_object
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.reading import grid
from nki_sim.loop_ir.tree import Access, Allocate, Buffer, DeviceLoop, Instruction, Loop, LoopKernel, Node, Result
from nki_sim.program.allocations import Allocations
from nki_sim.program.memory import Allocation, MemoryRegion
from nki_sim.program.program import Bound, Operand, Program, Template, TensorRef
from nki_sim.program.program import Loop as DeviceLoopRows


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
        self.given = (*kernel.parameters, *kernel.permanent)
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


@by_object
def _size(body: tuple[Node, ...]) -> _Size | None:
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
        self._made: dict[int, tuple[np.ndarray, list[int]]] = {}
        for leaf in leaves:
            if isinstance(leaf.node, Allocate):
                lows = [int(values.min()) for values in leaf.counters.values()]
                sizes = [int(values.max()) + 1 - low for values, low in zip(leaf.counters.values(), lows)]
                table = np.full(sizes, -1, np.int64)
                table[tuple(values - low for values, low in zip(leaf.counters.values(), lows))] = (
                    leaf.buffers if lows else leaf.buffers[0]
                )
                self._made[leaf.node.buffer] = (table, lows)

    def of(self, key: int, tile: Sequence[np.ndarray | int]) -> np.ndarray | int:
        """In each pass, or in all of them; `tile`: which of those that its Allocate makes."""
        fixed = self._fixed.get(key)
        if fixed is not None:
            return fixed
        table, lows = self._made[key]
        made: np.ndarray | int = table[tuple(each - low for each, low in zip(tile, lows))]
        return made


def expand(kernel: LoopKernel) -> Program:
    """The rows that a trace of the tree's text has, in their order.

    Raises IndexError for a tile that is never made.
    """
    expansion = _Expansion(kernel)
    size = expansion.run()
    numbers = _Numbers(kernel, expansion.given, expansion.leaves)
    rows = _Rows(kernel, expansion.leaves, numbers, size.rows)
    constants = {
        number: np.asarray(contents)
        for number, key in enumerate(expansion.given)
        if (contents := kernel.buffers[key].contents) is not None
    }
    return Program(
        kernel.name,
        kernel.machine,
        tuple(rows.templates),
        _allocations(kernel, expansion, size.buffers),
        rows.ids,
        rows.starts,
        rows.data,
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


def _allocations(kernel: LoopKernel, expansion: _Expansion, count: int) -> Allocations:
    kinds: list[Allocation] = []
    known: dict[tuple[object, ...], int] = {}

    def kind(key: int) -> int:
        each = kernel.buffers[key]
        said = (each.region, each.shape, each.dtype, each.name, each.line, each.address)
        number = known.setdefault(said, len(kinds))
        if number == len(kinds):
            kinds.append(Allocation(0, each.region, each.shape, each.dtype, each.name, each.line, 0, each.address))
        return number

    kind_of, allocated_at = np.zeros(count, np.int32), np.zeros(count, np.int64)
    for number, key in enumerate(expansion.given):
        kind_of[number] = kind(key)
    for leaf in expansion.leaves:
        if isinstance(leaf.node, Allocate):
            kind_of[leaf.buffers] = kind(leaf.node.buffer)
            allocated_at[leaf.buffers] = leaf.rows
    return Allocations(tuple(kinds), kind_of, allocated_at)


class _Rows:
    """Instructions in their order."""

    def __init__(self, kernel: LoopKernel, leaves: Sequence[_Leaf], numbers: _Numbers, count: int) -> None:
        self._kernel = kernel
        self._numbers = numbers
        self.templates: list[Template] = []
        self._known: dict[tuple[object, ...], int] = {}
        self._by_object: dict[int, tuple[Template, int]] = {}
        """Each with its number; kept here, so that no other object has its place."""
        self.ids = np.zeros(count, np.int32)
        self.starts = np.zeros(count + 1, np.int64)
        instructions = [(leaf, leaf.node) for leaf in leaves if isinstance(leaf.node, Instruction)]
        for leaf, node in instructions:
            self.starts[leaf.rows + 1] = len(node.operands)
        np.cumsum(self.starts, out=self.starts)
        self.data = np.zeros((int(self.starts[-1]), 2), np.int64)
        for leaf, node in instructions:
            self._add(leaf, node)

    def _add(self, leaf: _Leaf, node: Instruction) -> None:
        first = self.starts[leaf.rows]
        buffers = [self._kernel.buffers[access.buffer] for access in node.operands]
        made = (_made if len(leaf.rows) <= _KEPT_PASSES else _made.afresh)(node, leaf.counters, *buffers)
        for at, (access, offsets, tiles) in enumerate(zip(node.operands, made.offsets, made.tiles)):
            self.data[first + at, 0] = self._numbers.of(access.buffer, tiles)
            self.data[first + at, 1] = offsets
        numbers = [self._number(template) for template in made.templates]
        self.ids[leaf.rows] = numbers[0] if made.which is None else np.array(numbers, np.int32)[made.which]

    def _number(self, template: Template) -> int:
        _, number = self._by_object.get(id(template), (None, None))
        if number is None:
            said = (template.opcode, template.engine, template.attrs, template.operands, template.line)
            number = self._known.setdefault(said, len(self.templates))
            if number == len(self.templates):
                self.templates.append(template)
            self._by_object[id(template)] = template, number
        return number


_KEPT_PASSES = 1 << 8
"""Of more, what comes of an instruction in each is not kept: most of what a search expands it has expanded before."""


@dataclass(frozen=True)
class _Made:
    """Of an instruction, in all passes of the loops around it."""

    offsets: tuple[np.ndarray | int, ...]
    """Of each operand."""
    tiles: tuple[tuple[np.ndarray | int, ...], ...]
    """Which of the buffers that its Allocate makes, of each operand."""
    templates: tuple[Template, ...]
    which: np.ndarray | None
    """Of those, in each pass; None where there is one."""


@by_object
def _made(node: Instruction, counters: Mapping[str, np.ndarray], *buffers: Buffer) -> _Made:
    offsets = tuple(access.offset.evaluate(counters) for access in node.operands)
    tiles = tuple(tuple(form.evaluate(counters) for form in access.tile) for access in node.operands)
    place = [0] * (2 * len(node.operands))
    differ: dict[int, np.ndarray] = {}
    """By entry of a template's place: what it is in each pass, where that is not the same."""
    for at, (access, buffer, offset) in enumerate(zip(node.operands, buffers, offsets)):
        row = _partition_elements(buffer, access)
        if not row:
            continue
        in_psum = buffer.region is MemoryRegion.psum
        for entry, values in ((2 * at, offset // row), (2 * at + 1, offset % row if in_psum else 0)):
            if isinstance(values, np.ndarray) and (values != values[0]).any():
                differ[entry] = values
            else:
                place[entry] = int(values[0] if isinstance(values, np.ndarray) else values)
    if not differ:
        return _Made(offsets, tiles, (_template(buffers, node, place),), None)
    entries = list(differ)
    different, which = np.unique(np.stack([differ[entry] for entry in entries], 1), axis=0, return_inverse=True)
    templates = []
    for values in different.tolist():
        for entry, value in zip(entries, values):
            place[entry] = value
        templates.append(_template(buffers, node, place))
    return _Made(offsets, tiles, tuple(templates), which.reshape(-1))


def result_access(result: Result) -> Access:
    return Access("", "r", result.buffer, result.tile, Affine(result.offset), result.pattern, result.dtype)


def _number_of(access: Access, numbers: _Numbers) -> int:
    return int(numbers.of(access.buffer, [form.constant for form in access.tile]))


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


def _partition_elements(buffer: Buffer, access: Access) -> int:
    """Elements of the access's dtype per partition; 0 off chip."""
    if not buffer.region.on_chip:
        return 0
    return buffer.partition_elements * buffer.dtype.itemsize // access.dtype.itemsize


def _template(buffers: Sequence[Buffer], node: Instruction, place: Sequence[int]) -> Template:
    operands = tuple(
        Operand(
            access.role,
            access.access,
            buffer.region,
            access.dtype,
            access.pattern,
            place[2 * at],
            _partition_elements(buffer, access),
            access.indirection,
            place[2 * at + 1],
        )
        for at, (access, buffer) in enumerate(zip(node.operands, buffers))
    )
    return _first_alike(Template(node.opcode, node.engine, node.attrs, operands, node.line), repr(node.attrs))


@lru_cache(MOST_KEPT)
def _first_alike(template: Template, attributes: str) -> Template:
    """The first that says the same: of that one, its price and the like are known. `attributes`: in which 1 and 1.0,
    which are equal, are not the same."""
    return template


def template_of(buffers: Mapping[int, Buffer], node: Instruction) -> Template:
    """What it is where all counters are 0."""
    return _first(node, *(buffers[access.buffer] for access in node.operands))


@by_object
def _first(node: Instruction, *buffers: Buffer) -> Template:
    place = []
    for access, buffer in zip(node.operands, buffers):
        offset, row = access.offset.constant, _partition_elements(buffer, access)
        in_psum = row and buffer.region is MemoryRegion.psum
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
