"""The first part of a loop's body some passes ahead of the rest, so that engines that wait for each other do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from accelopt_core.rules.base import Site
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    Path,
    Refused,
    fresh_variable,
    loop_at,
    loops_around,
    paths,
    substituted,
    with_node,
    with_operands,
)
from nki_sim.loop_ir.dependence import allocated_in, conflict, uses
from nki_sim.loop_ir.tree import Access, Allocate, Buffer, Instruction, Loop, LoopKernel, Node, rebuilt, walk
from nki_sim.program import Engine

AHEAD = (1, 2)
"""Passes."""


class Pipeline:
    """Tensor work of later passes begins while other engines still take what earlier ones made."""

    name = "pipeline"
    comes_last = True

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Loop) and node.extent.is_constant:
                for at in _cuts(node.body):
                    for ahead in AHEAD:
                        if node.extent.constant > ahead:
                            line = _line(node.body[at:])
                            what = f"what comes before line {line} {ahead} passes of {node.where} ahead"
                            yield Site(self.name, path, (at, ahead), what, line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        at, ahead = (int(each) for each in site.arguments)
        loop, around = loop_at(kernel, site.path), loops_around(kernel, site.path)
        first, second = loop.body[:at], loop.body[at:]
        if not loop.extent.is_constant or not loop.start.is_constant or loop.extent.constant <= ahead:
            raise Refused("the loop has too few passes, or their number changes")
        if not first or not second:
            raise Refused("one of the two parts would be empty")
        blocked = conflict(second, first, kernel, (*around, loop), ((loop, 1),))
        if blocked is not None:
            raise Refused(f"line {blocked.node.line} of a later pass needs what comes after it in an earlier one")
        if any(kernel.buffers[key].address is not None for key in allocated_in(loop.body)):
            raise Refused("the kernel places a tile of the loop itself")
        crossing = _used_in(second) & allocated_in(first) | _used_elsewhere(kernel, site.path, loop)
        made = [node for node in loop.body if isinstance(node, Allocate) and node.buffer in crossing]
        if len(made) < len(crossing):
            raise Refused("a tile that the rest takes is made in a loop inside")
        first, second = (tuple(node for node in part if node not in made) for part in (first, second))
        names: list[str] = []
        for _ in range(3):
            names.append(fresh_variable(kernel, loop.variable, names))
        every, early, late = names
        counter, start = loop.variable, loop.start.constant
        kernel, before = _copied(kernel, substituted(first, {counter: Affine.variable(early)}))
        kernel, after = _copied(kernel, substituted(second, {counter: Affine.variable(late)}))
        further = _further(first, loop, ahead, len(around))
        new = (
            Loop(every, loop.start, loop.extent, tuple(made), loop.site),
            Loop(early, loop.start, Affine(ahead), before, loop.site),
            replace(loop, extent=loop.extent - ahead, body=(*further, *second)),
            Loop(late, loop.extent + (start - ahead), Affine(ahead), after, loop.site),
        )
        return with_node(kernel, site.path, new[0 if made else 1 :])


def _used_in(body: Sequence[Node]) -> frozenset[int]:
    return frozenset(use.access.buffer for use in uses(body))


def _used_elsewhere(kernel: LoopKernel, path: Path, loop: Loop) -> frozenset[int]:
    """Of the buffers that the loop makes."""
    elsewhere = _used_in(with_node(kernel, path, ()).body).union(each.buffer for each in kernel.outputs)
    return allocated_in(loop.body) & elsewhere


def _cuts(body: Sequence[Node]) -> list[int]:
    """Between the Tensor engine's work and other engines', where it has both."""
    cuts = []
    on_tensor: bool | None = None
    for at, node in enumerate(body):
        engines = [each.engine for each, _ in walk((node,)) if isinstance(each, Instruction)]
        engines = [each for each in engines if each is not Engine.dma]
        if engines:
            if on_tensor is not None and (engines[0] is Engine.tensor) is not on_tensor:
                cuts.append(at)
            on_tensor = engines[-1] is Engine.tensor
    return cuts


def _line(body: Sequence[Node]) -> int:
    return next((each.line for each, _ in walk(tuple(body)) if isinstance(each, Instruction)), 0)


def _further(body: Sequence[Node], loop: Loop, ahead: int, depth: int) -> tuple[Node, ...]:
    """The statements for a later pass; tiles of their own are made in the pass in which they are used."""
    own = allocated_in(body)
    later = Affine.of(ahead, {loop.variable: 1})

    def moved(access: Access) -> Access:
        if access.buffer not in own:
            return access
        return replace(access, tile=(*access.tile[:depth], access.tile[depth] - ahead, *access.tile[depth + 1 :]))

    return with_operands(substituted(body, {loop.variable: later}), moved)


def _copied(kernel: LoopKernel, body: tuple[Node, ...]) -> tuple[LoopKernel, tuple[Node, ...]]:
    """The statements with loops and tiles of their own."""
    own = sorted(allocated_in(body))
    first = max(kernel.buffers) + 1
    keys = {key: first + number for number, key in enumerate(own)}
    buffers: dict[int, Buffer] = {new: kernel.buffers[key] for key, new in keys.items()}
    taken: list[str] = []
    renamed = {}
    for node, _ in walk(body):
        if isinstance(node, Loop):
            renamed[node.variable] = fresh_variable(kernel, node.variable, taken)
            taken.append(renamed[node.variable])

    def change(node: Node) -> tuple[Node, ...]:
        if isinstance(node, Allocate):
            return (Allocate(keys.get(node.buffer, node.buffer)),)
        if isinstance(node, Loop):
            return (replace(node, variable=renamed[node.variable]),)
        if isinstance(node, Instruction):
            operands = tuple(replace(each, buffer=keys.get(each.buffer, each.buffer)) for each in node.operands)
            return (replace(node, operands=operands),)
        return (node,)

    body = substituted(body, {old: Affine.variable(new) for old, new in renamed.items()})
    return replace(kernel, buffers={**kernel.buffers, **buffers}), rebuilt(body, change)
