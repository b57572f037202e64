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
    joined_tiles,
    loop_at,
    loops_around,
    paths,
    substituted,
    with_node,
    with_operands,
)
from nki_sim.loop_ir.dependence import allocated_in, conflict, uses
from nki_sim.loop_ir.tree import Access, Allocate, Buffer, Instruction, Loop, LoopKernel, Node, rebuilt, walk
from nki_sim.program.program import Engine

AHEAD = (1, 2)
"""Passes."""
STAGES = "stages"


class Pipeline:
    """Tensor work of later passes begins while other engines still take what earlier ones made."""

    name = "pipeline"
    comes_last = True

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if not isinstance(node, Loop) or not node.extent.is_constant:
                continue
            stages = len({*_stages(kernel, path)}) if _cuts(node.body) else 1
            for ahead in (each for each in AHEAD if node.extent.constant > each):
                for at in _cuts(node.body):
                    line = _line(node.body[at:])
                    what = f"what comes before line {line} {ahead} passes of {node.where} ahead"
                    yield Site(self.name, path, (at, ahead), what, line)
                if 1 < stages <= node.extent.constant - ahead:
                    what = f"the body of {node.where} in {stages} stages, the first {ahead} passes ahead"
                    yield Site(self.name, path, (STAGES, ahead), what, node.site)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        at, ahead = site.arguments[0], int(site.arguments[1])
        if at != STAGES:
            return _ahead(kernel, site.path, int(at), ahead)[0]
        kernel, before = _in_stages(kernel, site.path)
        if not before:
            raise Refused("no Tensor work waits for another engine's")
        path = site.path
        for number, count in enumerate(before):
            kernel, path = _ahead(kernel, path, _after(count, loop_at(kernel, path).body), 1 if number else ahead)
        return kernel


def _in_stages(kernel: LoopKernel, path: Path) -> tuple[LoopKernel, list[int]]:
    """The loop's body stage by stage, and before each stage but the first how many statements that is."""
    loop, stages = loop_at(kernel, path), _stages(kernel, path)
    order = sorted(range(len(stages)), key=lambda at: stages[at])
    body = tuple(loop.body[at] for at in order)
    computed = [stages[at] for at in order if not isinstance(loop.body[at], Allocate)]
    before = [at for at in range(1, len(computed)) if computed[at] != computed[at - 1]]
    return with_node(kernel, path, (replace(loop, body=body),)), before


def _stages(kernel: LoopKernel, path: Path) -> list[int]:
    """Of each statement: how often, on the way to it, the Tensor engine takes what another engine makes."""
    body, around = loop_at(kernel, path).body, (*loops_around(kernel, path), loop_at(kernel, path))
    touched = [{use.access.buffer: use.writes for use in sorted(uses((n,)), key=lambda u: u.writes)} for n in body]
    engines = [_engines(node) for node in body]
    stages: list[int] = []
    for at, node in enumerate(body):
        stage = 0
        for before in range(at):
            shared = touched[at].keys() & touched[before].keys()
            if not any(touched[at][key] or touched[before][key] for key in shared):
                continue
            waits = engines[at][:1] == [Engine.tensor] != engines[before][-1:] != []
            if stages[before] + waits > stage and conflict((body[before],), (node,), kernel, around) is not None:
                stage = stages[before] + waits
        stages.append(stage)
    for at, node in enumerate(body):
        if isinstance(node, Allocate):
            stages[at] = min((stages[n] for n, keys in enumerate(touched) if node.buffer in keys), default=0)
    return stages


def _after(count: int, body: Sequence[Node]) -> int:
    """Behind so many statements; what is allocated then belongs to the next one."""
    places = [at for at, node in enumerate(body) if not isinstance(node, Allocate)]
    return places[count - 1] + 1


def _ahead(kernel: LoopKernel, path: Path, at: int, ahead: int) -> tuple[LoopKernel, Path]:
    """What comes before that statement of the loop there so many passes ahead of the rest; and where it is then."""
    kernel, at = _with_tiles_in_front(kernel, path, at)
    loop, around = loop_at(kernel, path), loops_around(kernel, path)
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
    crossing = _crossing(kernel, path, at)
    made = [node for node in loop.body if isinstance(node, Allocate) and node.buffer in crossing]
    first, second = (tuple(node for node in part if node not in made) for part in (first, second))
    names: list[str] = []
    for _ in range(3):
        names.append(fresh_variable(kernel, loop.variable, names))
    every, early, late = names
    counter, start = loop.variable, loop.start.constant
    kernel, before = _copied(kernel, substituted(first, {counter: Affine.variable(early)}))
    kernel, after = _copied(kernel, substituted(second, {counter: Affine.variable(late)}))
    further = _further(first, loop, ahead, len(around))
    new: tuple[Loop, ...] = (
        Loop(every, loop.start, loop.extent, tuple(made), loop.site),
        Loop(early, loop.start, Affine(ahead), before, loop.site),
        replace(loop, extent=loop.extent - ahead, body=(*further, *second)),
        Loop(late, loop.extent + (start - ahead), Affine(ahead), after, loop.site),
    )
    new = new[0 if made else 1 :]
    return with_node(kernel, path, new), (*path[:-1], path[-1] + len(new) - 2)


def _used_in(body: Sequence[Node]) -> frozenset[int]:
    return frozenset(use.access.buffer for use in uses(body))


def _crossing(kernel: LoopKernel, path: Path, at: int) -> frozenset[int]:
    """Buffers that the loop there makes before that cut and takes after it, or that are used outside of it."""
    body = loop_at(kernel, path).body
    elsewhere = _used_in(with_node(kernel, path, ()).body).union(each.buffer for each in kernel.outputs)
    return _used_in(body[at:]) & allocated_in(body[:at]) | allocated_in(body) & elsewhere


def _with_tiles_in_front(kernel: LoopKernel, path: Path, at: int) -> tuple[LoopKernel, int]:
    """With tiles that loops inside make, and that go over the cut, beside each other in the loop itself; and the cut.

    Raises Refused where they cannot be.
    """
    while True:
        body, crossing = loop_at(kernel, path).body, _crossing(kernel, path, at)
        places = [place for place, node in paths(body) if isinstance(node, Allocate) and node.buffer in crossing]
        inner = next((place for place in places if len(place) > 1), None)
        if inner is None:
            return kernel, at
        kernel = joined_tiles(kernel, (*path, *inner))
        at += len(loop_at(kernel, path).body) - len(body) if inner[0] < at else 0


def _engines(node: Node) -> list[Engine]:
    """Those that compute, in their order."""
    engines = [each.engine for each, _ in walk((node,)) if isinstance(each, Instruction)]
    return [each for each in engines if each is not Engine.dma]


def _cuts(body: Sequence[Node]) -> list[int]:
    """Between the Tensor engine's work and other engines', where it has both."""
    cuts = []
    on_tensor: bool | None = None
    for at, engines in enumerate(map(_engines, body)):
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
