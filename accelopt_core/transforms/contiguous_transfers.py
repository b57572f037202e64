"""Move elements that lie apart in one contiguous transfer, and pick or pack them on chip.

dma_copy(dst=even, src=x[0:128, 0:n:2])          wide = ndarray((128, n), dtype=x.dtype, buffer=sbuf)
                                          ->     dma_copy(dst=wide, src=x[0:128, 0:n])
                                                 tensor_copy(dst=even, src=wide[0:128, 0:n:2])

The same for a store of every other element of a tile: they are packed first. A transfer moves each run of neighbours
by itself, so that elements that lie apart cost as much as long rows; an engine reads and writes them in its stride.
Where a loop around a load counts the place within the stride, the contiguous one is the same for all its iterations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import IllegalSite, Site
from accelopt_core.transforms.index_algebra import Polynomial
from accelopt_core.transforms.kernel_code import KernelCode, Statement
from accelopt_core.transforms.one_instruction import InstructionTransform, counted, instead_of
from accelopt_core.transforms.operand_access import ONE
from accelopt_core.transforms.plain_names import made_once, named_language
from accelopt_core.transforms.strided_parts import PartReader, ends_of, is_on_chip, may_lie_apart, tile_of
from accelopt_core.transforms.syntax import parsed_expression, replace_nodes


@dataclass(frozen=True)
class _Rewrite:
    lines: tuple[str, ...]
    packs: bool
    why: str


class ContiguousTransfers(InstructionTransform[_Rewrite]):
    name = "contiguous-transfer"
    addresses = frozenset({Cause.DMA_BANDWIDTH, Cause.DMA_ISSUING, Cause.WAITING, Cause.TAIL, Cause.START_UP})
    gone = "has no transfer of elements that lie apart"

    def describe(self) -> str:
        return "Load or store whole rows in place of every n-th element, and pick or pack the elements on chip."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        def strided() -> Iterator[tuple[str, Statement]]:
            for statement in code.statements():
                if statement.operation == "dma_copy":
                    tile = tile_of(code, statement)
                    if tile and any(may_lie_apart(end) for end in ends_of(code, statement)):
                        yield tile, statement

        return counted(strided())

    def check(self, code: KernelCode, key: str, instruction: Statement) -> _Rewrite:
        return _plan(code, instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: _Rewrite) -> Site:
        what = "pack on chip what line {} moves apart" if found.packs else "pick on chip what line {} loads apart"
        return Site(
            self.name,
            key,
            what.format(instruction.line),
            instruction.line,
            found.why,
            "a transfer moves every run of neighbours by itself; an engine works on elements that lie apart in one go",
        )

    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: _Rewrite) -> cst.Module:
        return instead_of(code, instruction, list(found.lines))


# --- what is written instead ------------------------------------------------------------------------


def _plan(code: KernelCode, transfer: Statement) -> _Rewrite:
    """Raises IllegalSite."""
    where, text = f"line {transfer.line}", code.module.code_for_node
    dst, src = ends_of(code, transfer)
    assert transfer.call is not None
    if transfer.stateful or code.argument(transfer, "oob_mode") is not None:
        raise IllegalSite(f"{where} has a priority, or may leave something out")
    if not isinstance(transfer.call.func, cst.Attribute):
        raise IllegalSite(f"{where}: the name of nki.isa is not at hand")
    isa = text(transfer.call.func.value)
    reader = PartReader(code, transfer)
    is_load = is_on_chip(code, dst)
    on_chip, memory = (dst, src) if is_load else (src, dst)
    tile, rows = reader.part(on_chip), reader.part(memory)
    nl = named_language(code, made_once(code, tile.base))
    if tile.stride != ONE:
        counts = tile.counts or rows.counts
        if counts is None or len(counts) < 2:
            raise IllegalSite(f"{where}: how many elements it moves does not show")
        packed = code.fresh_name(f"{tile.base}_packed")
        made = f"{packed} = {nl}.ndarray({_shape(counts)}, dtype={tile.base}.dtype, buffer={nl}.sbuf)"
        moved = text(replace_nodes(transfer.node, {on_chip: cst.Name(packed)})).strip()
        ends = (text(on_chip), packed) if is_load else (packed, text(on_chip))
        copied = f"{isa}.tensor_copy(dst={ends[0]}, src={ends[1]})"
        lines = (made, moved, copied) if is_load else (made, copied, moved)
        return _Rewrite(lines, True, f"{packed} holds the same elements, and nothing else reads or writes it")
    if rows.stride == ONE or not is_load:
        raise IllegalSite(f"{where} stores elements that lie apart in HBM: what is between them is not its own")
    stretch = rows.stretch
    if stretch is None or len(stretch.shape) < 2:
        raise IllegalSite(f"{where} does not load rows")
    writers = [writer for root in code.roots_of(frozenset({rows.base})) for writer in code.writers(root)]
    if writers or code.bindings(rows.base):
        raise IllegalSite(f"{where} leaves out parts of {rows.base}, which the kernel writes: they may be unwritten")
    wide = code.fresh_name(f"{tile.base}_wide")
    has_rank = f'assert len({rows.base}.shape) == {stretch.rank}, "{rows.base} must have {stretch.rank} dimensions"'
    return _Rewrite(
        (
            *([has_rank] if stretch.rank is not None else []),
            f"{wide} = {nl}.ndarray({_shape(stretch.shape)}, dtype={rows.base}.dtype, buffer={nl}.sbuf)",
            text(replace_nodes(transfer.node, {dst: cst.Name(wide), src: parsed_expression(stretch.text)})).strip(),
            f"{isa}.tensor_copy(dst={text(dst)}, src={wide}[{', '.join(stretch.pick)}])",
        ),
        False,
        f"{rows.base} is an argument that nothing writes, and what lies between two of its elements is part of it",
    )


def _shape(counts: tuple[Polynomial, ...]) -> str:
    return f"({', '.join(map(str, counts))})"
