"""A copy on chip is left out: whoever took from it takes from where it came, or whoever filled it fills the copy."""

from __future__ import annotations

from collections.abc import Iterator

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import (
    is_local,
    may_be_exact,
    ranges_at,
    uses_of,
    with_operand,
    with_target_before,
    written_between,
)
from accelopt_core.rules.unread import without_unread
from nki_sim.loop_ir.changes import Path, Refused, block_at, loops_around, node_at, paths, with_node
from nki_sim.loop_ir.composing import through
from nki_sim.loop_ir.dependence import Use, covers, meet, uses
from nki_sim.loop_ir.tree import Access, Instruction, LoopKernel
from nki_sim.program.program import Engine


class DropCopy:
    """What reads a copy reads the original, and no engine moves it."""

    name = "drop-copy"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Instruction) and node.opcode == "tensor_copy":
                for end, done in (("source", "taken"), ("target", "filled")):
                    yield Site(self.name, path, (end,), f"no copy in line {node.line}: its {end} is {done}", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not isinstance(node, Instruction) or node.opcode != "tensor_copy":
            raise Refused("there is no copy in that place")
        dst, src = node.operands
        from_source = site.arguments == ("source",)
        others = uses_of(kernel, dst.buffer)[1] if from_source else uses_of(kernel, src.buffer)[0]
        computed = all(each.node.engine is not Engine.dma for each in others)  # engines compute in float32
        if dst.dtype != src.dtype and not (computed and may_be_exact(dst.dtype, src.dtype)):
            raise Refused("the copy converts")
        if from_source:
            return _take_from_source(kernel, site.path, dst, src)
        return _fill_target(kernel, site.path, dst, src)


def _take_from_source(kernel: LoopKernel, path: Path, dst: Access, src: Access) -> LoopKernel:
    writing, reading = uses_of(kernel, dst.buffer)
    if not is_local(kernel, dst.buffer) or len(writing) != 1 or not covers(dst, kernel.buffers[dst.buffer]):
        raise Refused("the copy is not all that fills its target")
    node = node_at(kernel, path)
    assert isinstance(node, Instruction)
    use = Use(src, node, loops_around(kernel, path))
    for each in reading:
        changed = written_between(kernel, path, each.path, use)
        if changed is not None:
            raise Refused(f"line {changed.node.line} writes the source before line {each.node.line} takes the copy")
        taken = each.node.operands[each.at]
        access = through(taken, dst, src, ranges_at(kernel, each.path)) if taken.tile == dst.tile else None
        if access is None:
            raise Refused(f"line {each.node.line} takes the copy in another form")
        kernel = with_operand(kernel, each, access)
    return without_unread(with_node(kernel, path, ()))


def _fill_target(kernel: LoopKernel, path: Path, dst: Access, src: Access) -> LoopKernel:
    writing, reading = uses_of(kernel, src.buffer)
    if not is_local(kernel, src.buffer) or len(reading) != 1:
        raise Refused("something else takes from the copy's source")
    for each in writing:
        beside = each.path[: len(path)]
        if beside[:-1] != path[:-1] or beside > path:
            raise Refused(f"line {each.node.line} fills the source elsewhere")
        use = Use(dst, each.node, loops_around(kernel, path))
        touched = _touched_between(kernel, beside, path, use)
        if touched is not None:
            raise Refused(f"line {touched.node.line} touches the target in between")
        filled = each.node.operands[each.at]
        access = through(filled, src, dst, ranges_at(kernel, each.path)) if filled.tile == src.tile else None
        if access is None:
            raise Refused(f"line {each.node.line} fills the source in another form")
        kernel = with_operand(kernel, each, access)
    first = min((each.path[: len(path)] for each in writing), default=path)
    return without_unread(with_node(with_target_before(kernel, first, dst.buffer), path, ()))


def _touched_between(kernel: LoopKernel, first: Path, last: Path, use: Use) -> Use | None:
    around = loops_around(kernel, first)
    for node in block_at(kernel, first)[first[-1] : last[-1]]:
        for other in uses((node,), around):
            if other.access.buffer == use.access.buffer and meet(other, use, kernel, around):
                return other
    return None
