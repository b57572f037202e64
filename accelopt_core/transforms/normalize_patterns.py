"""Access patterns that are a box of their buffer, as slices of it.

    rows = nl.ndarray((P, 4, W), ...)                               nisa.tensor_copy(dst=part, src=rows[0:P, k, 0:W:2])
    nisa.tensor_copy(                                        ->
        dst=part, src=rows.ap([[4 * W, P], [2, W // 2]], offset=k * W)
    )

Where every stride is that of a dimension, in their order, and the text shows that no row is left on the way.
"""

from __future__ import annotations

import libcst as cst

from accelopt_core.transforms.base import IllegalSite
from accelopt_core.transforms.index_algebra import Indices, Polynomial, number
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.operand_access import ON_CHIP, ONE, Access, AccessReader, Dim
from accelopt_core.transforms.syntax import parsed_expression
from accelopt_core.transforms.tile_shapes import Shapes, pattern_of


def with_patterns_as_slices(code: KernelCode) -> cst.Module:
    """The module; the very one of `code` when nothing changes."""
    boxes = _Boxes(code)
    changes: dict[cst.CSTNode, cst.CSTNode] = {}
    for statement in code.statements():
        if statement.call is None or statement.kind is not Kind.INSTRUCTION:
            continue
        for arg in statement.call.args:
            text = boxes.of(arg.value, statement) if isinstance(arg.value, cst.Call) else ""
            if text:
                changes[arg.value] = parsed_expression(text)
    return code.changed(changes) if changes else code.module


class _Boxes:
    def __init__(self, code: KernelCode) -> None:
        self._code, self._shapes = code, Shapes(code)
        self._indices, self._reader = Indices(code), AccessReader(code)

    def of(self, call: cst.Call, at: Statement) -> str:
        """The slices that an access pattern comes to; empty where it is none, or more than a box."""
        pairs = pattern_of(call)
        base = call.func.value if isinstance(call.func, cst.Attribute) else None
        if pairs is None or not isinstance(base, cst.Name) or self._shapes.base(base, at) is not base:
            return ""
        sizes = self._shapes.of(base, at)
        if sizes is None:
            return ""
        given = {a.keyword.value if a.keyword else ("pattern", "offset")[n]: a.value for n, a in enumerate(call.args)}
        try:
            offset = self._number(given["offset"], at) if "offset" in given else number(0)
            read = [(self._number(stride, at), self._number(count, at)) for stride, count in pairs]
        except IllegalSite:
            return ""
        sizes = tuple(self._indices.expanded(size, at) for size in sizes)
        on_chip = self._code.regions_of(base) <= ON_CHIP
        dims = self._dims(sizes, read, offset, on_chip)
        if dims is None or not all(self._fits(dim, size, at) for dim, size in zip(dims, sizes)):
            return ""
        return Access(base.value, sizes, dims, on_chip, is_buffer=True, rank_is_known=True).text

    def _number(self, expression: cst.BaseExpression, at: Statement) -> Polynomial:
        return self._indices.expanded(self._indices.polynomial(expression, at), at)

    @staticmethod
    def _dims(
        sizes: tuple[Polynomial, ...],
        pairs: list[tuple[Polynomial, Polynomial]],
        offset: Polynomial,
        on_chip: bool,
    ) -> tuple[Dim, ...] | None:
        """Each pair in a dimension of its own, in their order; the others at one index."""
        pitches = [ONE]
        for size in reversed(sizes[1:]):
            pitches.insert(0, pitches[0] * size)
        starts = []
        for pitch in pitches:
            multiple = _multiple(offset, pitch)
            starts.append(multiple)
            offset -= multiple * pitch
        if offset != number(0):
            return None
        taken: dict[int, tuple[Polynomial, Polynomial]] = {}
        free = 0
        for stride, count in pairs:
            place, step = _place(stride, count, pitches, free)
            if place is None or (on_chip and not taken and place):
                return None
            taken[place] = step, count
            free = place + 1
        return tuple(
            Dim(start, taken[at][1], taken[at][0]) if at in taken else Dim(start, ONE, dropped=True)
            for at, start in enumerate(starts)
        )

    def _fits(self, dim: Dim, size: Polynomial, at: Statement) -> bool:
        """All of it lies in its dimension, for certain."""
        end = dim.start + (dim.length - ONE) * dim.step + ONE
        if not dim.start.adds_up:
            return False
        if end == size or self._reader.fits(end, size, at):
            return True
        least = self._least(size - end, at)
        return least is not None and least >= 0

    def _least(self, difference: Polynomial, at: Statement) -> int | None:
        """Over the iterations around; None where that does not show."""
        for loop in reversed(at.block.loops()):
            variable = loop.variable
            if loop.count is None or variable not in difference.factors:
                continue
            if self._code.bindings(variable) != [loop]:
                return None
            last = self._indices.expanded(self._indices.polynomial(loop.count, loop), loop) - ONE
            slope, rest = difference.split(variable)
            if slope.value is None:
                return None
            difference = rest if slope.value >= 0 else slope * last + rest
        return difference.value


def _multiple(offset: Polynomial, pitch: Polynomial) -> Polynomial:
    """How often the pitch is in it, term by term."""
    found = number(0)
    for monomial, times in offset.terms.items():
        term = Polynomial({monomial: times})
        if not monomial and pitch.value:
            found += number(times // pitch.value)
        elif (multiple := term.over(pitch)) is not None:
            found += multiple
    return found


def _place(
    stride: Polynomial, count: Polynomial, pitches: list[Polynomial], free: int
) -> tuple[int | None, Polynomial]:
    """The first dimension from `free` on of whose pitch the stride is a number of times."""
    if count == ONE and free < len(pitches):
        return free, ONE
    for at in range(free, len(pitches)):
        step = stride.over(pitches[at])
        if step is not None and step.value is not None and step.value >= 1:
            return at, step
    return None, ONE
