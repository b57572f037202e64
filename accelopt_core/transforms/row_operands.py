"""Operands as rows: the first dimension behind the partitions, counted, and the same operand with some rows alone.

A part of a tile, an access pattern over it, or the tile in another shape; in each partition, its rows lie `stride`
elements apart, the first at `offset`, and each reaches `extent` elements beyond its beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from accelopt_core.transforms.base import IllegalSite
from accelopt_core.transforms.index_algebra import Polynomial, number
from accelopt_core.transforms.kernel_code import KernelCode, Statement
from accelopt_core.transforms.operand_access import ONE, Access, AccessReader, Dim
from accelopt_core.transforms.syntax import parsed_expression
from accelopt_core.transforms.tile_shapes import Shapes, pattern_of

Taken = Callable[[Polynomial, Polynomial], str]


@dataclass(frozen=True)
class Rows:
    name: str
    """Of the buffer."""
    on_chip: bool
    dimensions: int
    """Of the view, as far as it shows."""
    partitions: Polynomial
    count: Polynomial
    offset: Polynomial
    stride: Polynomial
    extent: Polynomial
    place: tuple[str, ...]
    """The same for two operands of one buffer whose rows are the same, each apart from all others; empty where rows may
    reach into one another."""
    begin: Polynomial | None
    """Index of the first row, where `place` is given."""
    needs: tuple[str, ...]
    """What must hold for all this, as conditions."""
    taken: Taken
    """The operand's text with only so many rows, from one of them on: taken(first, length)."""


class RowReader:
    def __init__(self, code: KernelCode) -> None:
        self._code = code
        self._reader = AccessReader(code)
        self._shapes = Shapes(code)

    def rows(self, expression: cst.BaseExpression, at: Statement) -> Rows:
        """Raises IllegalSite where they do not show."""
        if isinstance(expression, cst.Call):
            return self._of_pattern(expression, at)
        return self._of_part(self._whole(expression, at), at)

    def names(self, polynomial: Polynomial, at: Statement) -> frozenset[str]:
        """That it depends on, also by way of definitions."""
        full = self._reader.full
        return full.names(polynomial) | full.names(full.expanded(polynomial, at))

    def same(self, left: Polynomial, right: Polynomial, at: Statement) -> bool:
        return self._reader.same(left, right, at)

    def _whole(self, expression: cst.BaseExpression, at: Statement) -> cst.BaseExpression:
        """An argument with all its dimensions, where the kernel takes its shape apart."""
        base = expression.value if isinstance(expression, cst.Subscript) else expression
        if not isinstance(base, cst.Name) or base.value not in self._code.parameters:
            return expression
        shape = self._shapes.of(base, at)
        given = list(expression.slice) if isinstance(expression, cst.Subscript) else []
        text = self._code.module.code_for_node
        if shape is None or any("..." in text(each) for each in given):
            return expression
        parts = [text(each.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for each in given]
        parts += [f"0 : {size}" for size in shape[len(given) :]]
        return parsed_expression(f"{base.value}[{', '.join(parts)}]")

    def _of_part(self, expression: cst.BaseExpression, at: Statement) -> Rows:
        access = self._reader.access(expression, at)
        if len(access.kept) < 2:
            raise IllegalSite(f"line {at.line}: {access.name} has no rows behind its partitions here")
        row = access.kept[1]
        dim = access.dims[row]
        offset, extent = number(0), number(0)
        for place, each in enumerate(access.dims[1:], 1):
            offset += each.start * access.pitch(place)
            if place != row and not each.dropped:
                extent += (each.length - ONE) * each.step * access.pitch(place)

        def taken(first: Polynomial, length: Polynomial) -> str:
            dims = list(access.dims)
            dims[row] = Dim(dim.start + first * dim.step, length, dim.step)
            return _written(access, dims)

        return Rows(
            access.name,
            access.on_chip,
            len(access.kept),
            access.dims[access.kept[0]].length,
            dim.length,
            offset,
            dim.step * access.pitch(row),
            extent,
            (str(row), str(dim.start), str(dim.length), str(dim.step)),
            dim.start,
            (),
            taken,
        )

    def _of_pattern(self, call: cst.Call, at: Statement) -> Rows:
        """`.ap` and `.reshape` of a whole tile."""
        base = call.func.value if isinstance(call.func, cst.Attribute) else None
        if not isinstance(base, cst.Name):
            raise IllegalSite(
                f"line {at.line}: {self._code.module.code_for_node(call)} is no view of a tile by its name"
            )
        whole = self._buffer(base, at)
        pairs, offset = self._pairs(call, at)
        if len(pairs) < 2:
            raise IllegalSite(f"line {at.line}: {base.value} has no rows behind its partitions here")
        (pitch, partitions), (stride, count), *others = pairs
        for each in (offset, *(step for step, _ in pairs)):
            if not self._reader.full.expanded(each, at).adds_up:
                raise IllegalSite(f"line {at.line}: {each} may be less than nothing")
        extent = number(0)
        for step, length in others:
            extent += step * (length - ONE)
        needs = []
        if whole.on_chip:
            held = whole.pitch(0)
            needs += [] if pitch == held else [f"{pitch} == {held}"]
            needs.append(f"{offset + (count - ONE) * stride + extent} < {held}")

        def taken(first: Polynomial, length: Polynomial) -> str:
            inner = [(pitch, partitions), (stride, length), *others]
            pattern = ", ".join(f"[{step}, {many}]" for step, many in inner)
            return f"{whole.name}.ap(pattern=[{pattern}], offset={offset + first * stride})"

        return Rows(
            whole.name,
            whole.on_chip,
            len(pairs),
            partitions,
            count,
            offset,
            stride,
            extent,
            (),
            None,
            tuple(needs),
            taken,
        )

    def _buffer(self, base: cst.Name, at: Statement) -> Access:
        """A whole tile, or a whole argument, by its name. Raises IllegalSite."""
        named = self._whole(base, at)
        whole = self._reader.access(named, at)
        if not whole.is_buffer or (not whole.on_chip and named is base and base.value in self._code.parameters):
            raise IllegalSite(f"line {at.line}: how {base.value} lies in memory does not show")
        return whole

    def _pairs(self, call: cst.Call, at: Statement) -> tuple[list[tuple[Polynomial, Polynomial]], Polynomial]:
        pattern = pattern_of(call)
        if pattern is not None:
            read = self._reader.number
            given = [arg.value for k, arg in enumerate(call.args) if _is_offset(arg, k)]
            offset = read(given[0], at) if given else number(0)
            return [(read(step, at), read(many, at)) for step, many in pattern], offset
        shape = self._shapes.of(call, at)
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if method != "reshape" or shape is None:
            raise IllegalSite(f"line {at.line}: {self._code.module.code_for_node(call)} is a view of another kind")
        pairs: list[tuple[Polynomial, Polynomial]] = []
        pitch = ONE
        for size in reversed(shape):
            pairs.insert(0, (pitch, size))
            pitch *= size
        return pairs, number(0)


def _is_offset(arg: cst.Arg, position: int) -> bool:
    return arg.keyword.value == "offset" if arg.keyword is not None else position == 1


def _written(access: Access, dims: list[Dim]) -> str:
    return f"{access.name}[{', '.join(dim.text for dim in dims)}]"
