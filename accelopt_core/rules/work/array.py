"""Products of few rows side by side on the Tensor engine's array, each on a part of its rows.

NKI's page of nc_matmul, tiling mode, documents the tiles of the array; partition p of SBUF feeds row p of the array
(Trainium2 architecture guide). No measured row of ours shows whether two parts work at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import is_local, uses_of
from accelopt_core.rules.loops.grouping import ALL, in_blocks, with_joined_tiles
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    Along,
    Path,
    Refused,
    checked,
    fission,
    instruction_at,
    joined_tiles,
    loop_at,
    merged,
    paths,
    place_of,
    rechecked,
    substituted,
    with_node,
)
from nki_sim.loop_ir.tree import Access, Allocate, Instruction, Loop, LoopKernel, Node
from nki_sim.machine import ISA

PARTS = (2, 4)
"""Of the array's rows."""


class ShareArray:
    """Products that fill part of TensorE's array run side by side in its other parts."""

    name = "share-array"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Loop) and node.extent.is_constant:
                for parts in PARTS:
                    fits = any(_fits(each, parts) for each in node.body)
                    if fits and node.extent.constant % parts == 0 and node.extent.constant >= parts:
                        what = f"{parts} passes of {node.where} on a part of the array each"
                        yield Site(self.name, path, (parts,), what, node.site)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        parts = int(site.arguments[0])
        block = ALL if loop_at(kernel, site.path).extent == Affine(parts) else parts
        (kernel,), path = in_blocks((kernel,), site.path, block)
        products = [node for node in loop_at(kernel, path).body if _fits(node, parts)]
        if not products:
            raise Refused("no product of that few rows stands there")
        shared = {access.buffer for node in products if isinstance(node, Instruction) for access in node.operands[1:]}
        for key in sorted(shared):
            kernel, path = _on_parts(kernel, path, key, parts)
        (kernel,), path = with_joined_tiles((kernel,), path)
        pieces = 1
        for cut in range(len(loop_at(kernel, path).body) - 1, 0, -1):
            kernel = fission(kernel, path, cut)
            pieces += 1
        for number in reversed(range(pieces)):
            kernel = _at_once(kernel, (*path[:-1], path[-1] + number), parts)
        return rechecked(kernel, shared)


def _fits(node: Node, parts: int) -> bool:
    """Is it a product of as many rows as a part of the array has?"""
    if not isinstance(node, Instruction) or node.opcode != "nc_matmul":
        return False
    attrs = node.attrs
    return node.operands[1].pattern[0][1] * parts == ISA.tensor_rows and not (attrs.tile_size or attrs.is_transpose)


def _on_parts(kernel: LoopKernel, path: Path, key: int, parts: int) -> tuple[LoopKernel, Path]:
    """The buffer with a place on every part of the partitions, of which each pass of the loop there takes its own."""
    place = next((each for each, node in paths(kernel.body) if node == Allocate(key)), None)
    if place is None or not is_local(kernel, key):
        raise Refused("an operand of the product is not the kernel's own tile")
    if place[: len(path)] == path:
        return joined_tiles(kernel, place, Along.partitions), (*path[:-1], path[-1] + 1)
    buffer = kernel.buffers[key]
    if buffer.address is not None:
        raise Refused("the kernel places the buffer itself")
    if buffer.shape[0] * parts > ISA.partitions:
        raise Refused(f"{parts} tiles of {buffer.shape[0]} partitions are more than there are")
    loop = loop_at(kernel, path)
    writing, reading = uses_of(kernel, key)
    if any(each.path[: len(path)] == path for each in writing):
        raise Refused("the loop changes what all of its passes take")
    step = buffer.shape[0] * buffer.partition_elements
    for each in [each for each in reading if each.path[: len(path)] == path]:
        node = instruction_at(kernel, each.path)
        operands = tuple(_further(o, key, Affine.of(0, {loop.variable: step}), loop) for o in node.operands)
        kernel = with_node(kernel, each.path, (replace(node, operands=operands),))
    for each in reversed(writing):
        if each.node.opcode in ("nc_matmul", "nc_transpose"):
            raise Refused(f"{each.node.opcode} fills no other partitions")
        copies = [
            replace(each.node, operands=tuple(_further(o, key, Affine(step * part), loop) for o in each.node.operands))
            for part in range(parts)
        ]
        kernel = with_node(kernel, each.path, copies)
    buffers = {**kernel.buffers, key: replace(buffer, shape=(buffer.shape[0] * parts, *buffer.shape[1:]))}
    kernel = replace(kernel, buffers=buffers)
    return kernel, place_of(kernel, loop.variable)


def _further(access: Access, key: int, by: Affine, loop: Loop) -> Access:
    if access.buffer != key:
        return access
    return replace(access, offset=access.offset + by - loop.start.constant * by.coefficient(loop.variable))


def _at_once(kernel: LoopKernel, path: Path, parts: int) -> LoopKernel:
    """The loop there, of one instruction, as one instruction, or as one for each part of the array."""
    loop = loop_at(kernel, path)
    node = loop.body[0]
    if not _fits(node, parts):
        for along in (Along.columns, Along.partitions):
            try:
                return merged(kernel, path, along)
            except Refused:
                continue
        return kernel
    assert isinstance(node, Instruction)
    rows = ISA.tensor_rows // parts
    made: list[Node] = []
    for part in range(parts):
        attrs = node.attrs._replace(tile_position=(rows * part, 0), tile_size=(rows, ISA.tensor_columns))
        number = {loop.variable: loop.start + part}
        (one,) = substituted((replace(node, attrs=attrs),), number)
        assert isinstance(one, Instruction)
        made.append(checked(one, kernel.buffers))
    return with_node(kernel, path, made)
