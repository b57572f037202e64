"""Elementwise work on a part of the columns at a time, so that transfers and engines overlap.

What takes other parts' columns too, as a stencil does, begins when all parts before it are done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import with_tile
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    ELEMENTWISE,
    Path,
    Refused,
    block_at,
    checked,
    fresh_variable,
    instructions,
    loops_around,
    paths,
    substituted,
    with_block,
)
from nki_sim.loop_ir.dependence import conflict
from nki_sim.loop_ir.tree import Access, Allocate, DeviceLoop, Instruction, Loop, LoopKernel, Node

PARTS = (2, 4, 8)
INNER = "inner"
LONG_RUN = 512
"""Bytes that lie together, from which on a transfer moves at its bandwidth (AWS's pages on DMA)."""


class SplitColumns:
    """A long row in parts, so that one engine begins while another still works."""

    name = "split-columns"
    comes_last = True

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in blocks(kernel):
            for first, last in runs(node):
                line = next((n.line for n in node[first:last] if isinstance(n, Instruction)), 0)
                for parts in PARTS:
                    what = f"the work from line {line} on in {parts} parts of its columns"
                    yield Site(self.name, path, (first, last, parts), what, line)
        for path, load in instructions(kernel, "dma_copy"):
            run = load.operands[0].pattern[-1][1] * load.operands[0].dtype.itemsize
            for parts in (PARTS[0], PARTS[-1]):
                if run >= parts * LONG_RUN or (parts == PARTS[0] and min(len(o.pattern) for o in load.operands) > 2):
                    what = f"the transfer of line {load.line} in {parts} parts of its innermost columns"
                    yield Site(self.name, (*path[:-1], 0), (path[-1], path[-1] + 1, parts, INNER), what, load.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        first, end, parts = (int(each) for each in site.arguments[:3])
        block = block_at(kernel, site.path)
        run = block[first:end]
        kept = [node for node in run if isinstance(node, Allocate)]
        computed = [node for node in run if isinstance(node, Instruction)]
        if not computed:
            raise Refused("nothing is computed there")
        around = loops_around(kernel, site.path)
        made: list[Node] = []
        for node in computed:
            taken = [each.variable for each in made if isinstance(each, Loop)]
            one = Loop(fresh_variable(kernel, "part", taken), Affine(), Affine(parts), ())
            last: tuple[Node, ...] = ()
            if _is_extreme(node):
                kernel, tile, node, final = _of_parts(kernel, site.path, node, parts, one.variable)
                kept, last = [*kept, tile], (final,)
            part = checked(part_of(node, parts, one.variable, kernel, INNER in site.arguments), kernel.buffers)
            if conflict((part,), (part,), kernel, (*around, one), ((one, 1),)) is not None:
                raise Refused(f"line {node.line} takes columns that another part of it writes")
            before = made[-1] if made else None
            joined: tuple[Node, ...] = ()
            if isinstance(before, Loop):
                joined = substituted((part,), {one.variable: Affine.variable(before.variable)})
                if conflict(joined, before.body, kernel, (*around, before), ((before, 1),)):
                    joined = ()
            if joined:
                assert isinstance(before, Loop)
                made[-1] = replace(before, body=(*before.body, *joined))
            else:
                made.append(replace(one, body=(part,)))  # what it takes of other parts is there before it begins
            made += last
        return with_block(kernel, site.path, (*block[:first], *kept, *made, *block[end:]))


def _is_extreme(node: Instruction) -> bool:
    """Is it the greatest or the least of whole rows, which parts of them have the same?"""
    attrs = node.attrs
    if node.opcode != "tensor_reduce" or attrs.op not in ("maximum", "minimum") or attrs.negate:
        return False
    return len(attrs.axes) == len(node.operands[1].pattern) - 1


def _of_parts(
    kernel: LoopKernel, path: Path, node: Instruction, parts: int, variable: str
) -> tuple[LoopKernel, Allocate, Instruction, Instruction]:
    """The same of each part, and of what the parts have, with the tile for these."""
    dst, data = node.operands
    kernel, own = with_tile(kernel, path, [dst.pattern[0][1], parts], dst.dtype, "of_parts", node.line)
    of_part = replace(own, offset=Affine.variable(variable), pattern=((parts, dst.pattern[0][1]), (1, 1)))
    attrs, taken = node.attrs._replace(axes=(1,)), replace(own, role="data", access="r")
    final = replace(node, attrs=attrs, operands=(dst, taken))
    return kernel, Allocate(own.buffer), replace(node, operands=(of_part, data)), checked(final, kernel.buffers)


def blocks(kernel: LoopKernel) -> Iterator[tuple[Path, tuple[Node, ...]]]:
    """Each block by the path of its first statement."""
    yield (0,), kernel.body
    for path, node in paths(kernel.body):
        if isinstance(node, (Loop, DeviceLoop)) and node.body:
            yield (*path, 0), node.body


def runs(block: tuple[Node, ...]) -> list[tuple[int, int]]:
    """Stretches of elementwise instructions, with what is allocated between them; the greatest of a row ends one."""
    found: list[tuple[int, int]] = []
    begin = 0
    for at, node in enumerate((*block, None)):
        ends = isinstance(node, Instruction) and _is_extreme(node)
        if not (isinstance(node, Allocate) or isinstance(node, Instruction) and is_by_columns(node)):
            end = at + ends
            if sum(isinstance(each, Instruction) for each in block[begin:end]) > 1:
                found.append((begin, end))
            begin = at + 1
    return found


def is_by_columns(node: Instruction) -> bool:
    """Does it do the first dimension behind the partitions column by column?"""
    if node.opcode == "tensor_reduce":
        return len(node.attrs.axes) < len(node.operands[1].pattern) - 1
    return node.opcode in ELEMENTWISE and node.opcode != "nc_matmul" and node.operand("reduce_res") is None


def part_of(node: Instruction, parts: int, variable: str, kernel: LoopKernel, inner: bool = False) -> Instruction:
    """One part of its columns: of its first dimension behind the partitions, or of its last one."""
    tiles = ("data",) if _is_extreme(node) else ELEMENTWISE.get(node.opcode, ())
    on_chip = [o for o in node.operands if o.role in tiles and kernel.buffers[o.buffer].region.on_chip]
    if not on_chip:
        raise Refused(f"line {node.line} does nothing on chip")
    if inner and len({each.pattern[-1][1] for each in node.operands}) > 1:
        raise Refused(f"line {node.line} has its columns in another form on chip")
    partitions = on_chip[0].pattern[0][1]
    operands = []
    for access in node.operands:
        if access.role not in tiles:
            operands.append(access)
            continue
        at = len(access.pattern) - 1 if inner else _first_free(access, partitions, kernel)
        stride, count = access.pattern[at]
        if count % parts:
            raise Refused(f"line {node.line} has {count} columns, which are not {parts} equal parts")
        size = count // parts
        pattern = (*access.pattern[:at], (stride, size), *access.pattern[at + 1 :])
        operands.append(
            replace(access, pattern=pattern, offset=access.offset + Affine.of(0, {variable: stride * size}))
        )
    return replace(node, operands=tuple(operands))


def _first_free(access: Access, partitions: int, kernel: LoopKernel) -> int:
    """Which pair of the pattern is the first that walks within a partition."""
    if kernel.buffers[access.buffer].region.on_chip:
        at, run = 1, partitions
    else:
        at, run = 0, 1
        while at < len(access.pattern) and run < partitions:
            run *= access.pattern[at][1]
            at += 1
    while at < len(access.pattern) - 1 and access.pattern[at][1] == 1:
        at += 1
    if run != partitions or at >= len(access.pattern):
        raise Refused("its rows do not fit the partitions")
    return at
