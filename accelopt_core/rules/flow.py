"""Who fills a tile and who takes from it, as rules about single instructions ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nki_sim.loop_ir.changes import Path, Refused, block_at, loops_around, paths
from nki_sim.loop_ir.dependence import Use, conflict, uses
from nki_sim.loop_ir.tree import Allocate, Instruction, Loop, LoopKernel, Node


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


def local_tiles(kernel: LoopKernel) -> Iterator[tuple[Path, int]]:
    """Where each buffer is made, and its key."""
    for path, node in paths(kernel.body):
        if isinstance(node, Allocate):
            yield path, node.buffer


def ranges_at(kernel: LoopKernel, path: Path) -> dict[str, tuple[int, int]]:
    """By counter of the loops around: its least and greatest value."""
    ranges: dict[str, tuple[int, int]] = {}
    loops: tuple[Loop, ...] = loops_around(kernel, path)
    for loop in loops:
        low, _ = loop.start.bounds(ranges)
        _, most = (loop.start + loop.extent).bounds(ranges)
        ranges[loop.variable] = (low, most - 1)
    return ranges
