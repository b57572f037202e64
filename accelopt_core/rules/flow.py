"""Who fills a tile and who takes from it, as rules about single instructions ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nki_sim.dtypes import DType
from nki_sim.isa.constants import oob_mode
from nki_sim.isa.dma import DmaCopy
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    Path,
    Refused,
    block_at,
    checked,
    instruction_at,
    loops_around,
    paths,
    with_block,
    with_node,
)
from nki_sim.loop_ir.composing import through
from nki_sim.loop_ir.dependence import Use, conflict, ranges_of, uses
from nki_sim.loop_ir.tree import Access, Allocate, Buffer, Instruction, Loop, LoopKernel, Node, dense, walk
from nki_sim.program.memory import MemoryRegion


@dataclass(frozen=True)
class Placed:
    """A use and where its instruction stands."""

    path: Path
    node: Instruction
    at: int
    """Which of the instruction's operands."""


def uses_of(kernel: LoopKernel, buffer: int) -> tuple[list[Placed], list[Placed]]:
    """(writing, reading), in program order; an update is both."""
    writing: list[Placed] = []
    reading: list[Placed] = []
    for path, node in paths(kernel.body):
        if isinstance(node, Instruction):
            for at, access in enumerate(node.operands):
                if access.buffer == buffer:
                    if access.access != "r":
                        writing.append(Placed(path, node, at))
                    if access.access != "w":
                        reading.append(Placed(path, node, at))
    return writing, reading


def is_local(kernel: LoopKernel, buffer: int) -> bool:
    """Is it made by the kernel, on chip or in HBM, and not returned?"""
    return (
        buffer not in kernel.parameters
        and buffer not in kernel.permanent
        and all(each.buffer != buffer for each in kernel.outputs)
    )


def check_free(kernel: LoopKernel, key: int) -> None:
    """Raises Refused where somebody outside of the kernel knows the buffer, or its place."""
    if not is_local(kernel, key) or kernel.buffers[key].address is not None:
        raise Refused("the kernel returns the buffer, or places it itself")


def may_be_exact(*dtypes: DType) -> bool:
    """Are they floats of 16 bits or more? What is rounded to one on its way to the next instruction may as well not be;
    8 bits are a form that a kernel asks for."""
    return all(dtype.is_float and dtype.itemsize > 1 for dtype in dtypes)


def between(kernel: LoopKernel, first: Path, last: Path) -> tuple[Node, ...]:
    """What stands behind the first in its block, up to the statement that `last` is or lies in."""
    if last[: len(first) - 1] != first[:-1] or len(last) < len(first):
        raise Refused("they are not in one block")
    block = block_at(kernel, first)
    return block[first[-1] + 1 : last[len(first) - 1] + 1]


def written_between(kernel: LoopKernel, first: Path, last: Path, use: Use) -> Use | None:
    """A use behind the first statement, up to the last's, that writes what `use` touches; but `use` itself."""
    around = loops_around(kernel, first)
    for node in between(kernel, first, last):
        for other in uses((node,), around):
            if other.writes and other.access.buffer == use.access.buffer and other.access is not use.access:
                found = conflict((node,), (Instruction("", use.node.engine, None, (use.access,)),), kernel, around)
                if found is not None:
                    return other
    return None


_MOST_ELEMENTS = 1 << 22
"""Of a buffer that is looked at element by element."""
_MOST_PASSES = 256
"""Of a loop, likewise."""


def fills_before_reading(body: Sequence[Node], key: int, kernel: LoopKernel) -> bool:
    """Does no statement of the block take from the buffer what none before it in the block wrote?"""
    buffer = kernel.buffers[key]
    elements = buffer.partition_elements * (buffer.shape[0] if buffer.region.on_chip else 1)
    inside = {node.variable for node, _ in walk(tuple(body)) if isinstance(node, Loop)}
    for use in uses(body):
        if use.access.buffer == key and (
            use.access.dtype != buffer.dtype
            or use.access.indirection is not None
            or not use.access.offset.variables <= inside
        ):
            return False
    return elements <= _MOST_ELEMENTS and _fill(body, key, {}, np.zeros(elements, np.bool_))


def _fill(body: Sequence[Node], key: int, counters: Mapping[str, int], written: np.ndarray) -> bool:
    """Marks what the block writes; False where something takes what is not written."""
    for node in body:
        mine = [use.access for use in uses((node,)) if use.access.buffer == key]
        if not mine:
            continue
        if isinstance(node, Loop):
            moves = any(node.variable in access.offset.variables for access in mine)
            if not (node.start.is_constant and node.extent.is_constant) or node.extent.constant > _MOST_PASSES:
                return False
            for at in range(node.extent.constant if moves else min(1, node.extent.constant)):
                if not _fill(node.body, key, {**counters, node.variable: node.start.constant + at}, written):
                    return False
        elif isinstance(node, Instruction):
            if not all(written[_elements(access, counters)].all() for access in mine if access.access != "w"):
                return False
            for access in mine if not leaves_gaps(node) else ():
                written[_elements(access, counters)] = True
        else:
            return False
    return True


def leaves_gaps(node: Instruction) -> bool:
    """Are rows whose index lies outside left as they were?"""
    return getattr(node.attrs, "oob_mode", None) is oob_mode.skip


def _elements(access: Access, counters: Mapping[str, int]) -> np.ndarray:
    places = np.array([int(access.offset.evaluate(counters))], np.int64)
    for stride, count in access.pattern:
        places = (places[:, None] + stride * np.arange(count)).ravel()
    return places


def local_tiles(kernel: LoopKernel) -> Iterator[tuple[Path, int]]:
    """Where each buffer is made, and its key."""
    for path, node in paths(kernel.body):
        if isinstance(node, Allocate):
            yield path, node.buffer


def ranges_at(kernel: LoopKernel, path: Path) -> dict[str, tuple[int, int]]:
    """By counter of the loops around: its least and greatest value."""
    return ranges_of(loops_around(kernel, path))


def source_in_hbm(kernel: LoopKernel, path: Path, access: Access) -> tuple[Access, DmaCopy]:
    """Where HBM has what was loaded there, copied and transposed on its way, and how it was loaded. Raises Refused."""
    attributes: DmaCopy | None = None
    while kernel.buffers[access.buffer].region.on_chip:
        writing, _ = uses_of(kernel, access.buffer)
        if not is_local(kernel, access.buffer) or len(writing) != 1:
            raise Refused("what is taken is not just loaded")
        node = writing[0].node
        dst, src = node.operands[:2]
        attributes = node.attrs if node.opcode == "dma_copy" else attributes
        if node.opcode not in ("dma_copy", "tensor_copy", "nc_transpose") or dst.dtype != src.dtype:
            raise Refused(f"line {node.line} makes what is taken")
        if node.opcode == "nc_transpose":
            if len(src.pattern) != 2 or len(dst.pattern) != 2:
                raise Refused(f"line {node.line} transposes more than a matrix")
            src = replace(src, pattern=(src.pattern[1], src.pattern[0]))
        place, own = writing[0].path, frozenset().union(*(form.variables for form in dst.tile))
        if not dst.variables | src.variables <= own and (path[: len(place) - 1] != place[:-1] or path < place):
            raise Refused(f"line {node.line} makes what is taken part by part, or for another pass")
        found = through(access, dst, src, ranges_at(kernel, path))
        if found is None:
            raise Refused("it is taken in another form than it was loaded")
        access = found
    if attributes is None or uses_of(kernel, access.buffer)[0]:
        raise Refused("the kernel writes what it is loaded from")
    return access, attributes


def with_operand(kernel: LoopKernel, place: Placed, access: Access) -> LoopKernel:
    """With that access in the place of the use. Raises Refused where no engine can do what is made then."""
    node = instruction_at(kernel, place.path)
    operands = (*node.operands[: place.at], access, *node.operands[place.at + 1 :])
    return with_node(kernel, place.path, (checked(replace(node, operands=operands), kernel.buffers),))


def taken_through(kernel: LoopKernel, place: Placed, here: Access, there: Access) -> LoopKernel:
    """With the use of what lies in `here` where `there` has it. Raises Refused."""
    node = instruction_at(kernel, place.path)
    moved = through(node.operands[place.at], here, there, ranges_at(kernel, place.path))
    if moved is None:
        raise Refused(f"line {node.line} takes the tile in another form")
    return with_operand(kernel, place, moved)


def with_target_before(kernel: LoopKernel, path: Path, buffer: int) -> LoopKernel:
    """The Allocate of what the instruction there fills, in front of it."""
    block = list(block_at(kernel, path))
    for at, node in enumerate(block):
        if isinstance(node, Allocate) and node.buffer == buffer and at > path[-1]:
            del block[at]
            block.insert(path[-1], node)
            return with_block(kernel, path, block)
    return kernel


def with_tile(
    kernel: LoopKernel,
    path: Path,
    sizes: Sequence[int],
    dtype: DType,
    name: str,
    line: int,
    region: MemoryRegion = MemoryRegion.sbuf,
) -> tuple[LoopKernel, Access]:
    """A tile for each pass of the loops around that place, and what writes all of it in order. Its Allocate is
    still to be put there."""
    key = max(kernel.buffers) + 1
    shape = (sizes[0], *(sizes[1:] or (1,)))
    tile = tuple(Affine.variable(loop.variable) for loop in loops_around(kernel, path))
    buffers = {**kernel.buffers, key: Buffer(region, shape, dtype, name, line)}
    return replace(kernel, buffers=buffers), Access("dst", "w", key, tile, Affine(), dense(shape), dtype)
