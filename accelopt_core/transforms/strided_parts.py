"""Elements of a buffer that lie apart: every n-th one of a row, by a slice, an index or an access pattern.

Where a loop around the operand counts the place between two elements, all its iterations together take all of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import libcst as cst

from accelopt_core.transforms.base import IllegalSite
from accelopt_core.transforms.index_algebra import Polynomial, number
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.operand_access import HBM, ON_CHIP, ONE, Access, AccessReader, Dim


@dataclass(frozen=True)
class Part:
    """What an operand takes of a buffer."""

    base: str
    counts: tuple[Polynomial, ...] | None
    """Elements, dimension by dimension; None where the text does not show it."""
    stride: Polynomial
    """From one element of the last dimension to the next."""
    stretch: Stretch | None
    """None where neighbours follow one another."""


@dataclass(frozen=True)
class Stretch:
    """All that lies between the first and the last element of every row."""

    text: str
    shape: tuple[Polynomial, ...]
    pick: tuple[str, ...]
    """The wanted ones of them, as indices."""
    counted_by: Statement | None
    """A loop whose variable counts the places between two elements."""
    is_covered: bool
    """Its iterations together take every element."""
    rank: int | None = None
    """Dimensions that the buffer must have; None where the text shows that it does."""


def ends_of(code: KernelCode, transfer: Statement) -> list[cst.BaseExpression]:
    found = (code.argument(transfer, "dst", 0), code.argument(transfer, "src", 1))
    return [end for end in found if end is not None]


def tile_of(code: KernelCode, transfer: Statement) -> str:
    """The buffer at its end on chip, where the other one is in HBM; empty for any other transfer."""
    ends = ends_of(code, transfer)
    regions = [code.regions_of(base_of(end)) for end in ends]
    for at, end in enumerate(ends):
        others = regions[:at] + regions[at + 1 :]
        base = base_of(end)
        if isinstance(base, cst.Name) and regions[at] and regions[at] <= ON_CHIP and others and all(others):
            return base.value if all(each <= HBM for each in others) else ""
    return ""


def base_of(operand: cst.BaseExpression) -> cst.BaseExpression:
    pattern = _pattern_call(operand)
    if pattern is not None and isinstance(pattern.func, cst.Attribute):
        return pattern.func.value
    return operand.value if isinstance(operand, cst.Subscript) else operand


def _pattern_call(operand: cst.BaseExpression) -> cst.Call | None:
    """`x.ap(...)`."""
    is_one = (
        isinstance(operand, cst.Call)
        and isinstance(operand.func, cst.Attribute)
        and operand.func.attr.value == "ap"
        and isinstance(operand.func.value, cst.Name)
    )
    return operand if is_one and isinstance(operand, cst.Call) else None


def may_lie_apart(operand: cst.BaseExpression) -> bool:
    """Whether its text says that the last of its elements do not follow one another."""
    if isinstance(operand, cst.Subscript) and isinstance(operand.value, cst.Name):
        last = operand.slice[-1].slice
        if isinstance(last, cst.Slice):
            return last.step is not None and not _is_one(last.step)
        return len(operand.slice) > 2 and isinstance(last, cst.Index) and not isinstance(last.value, cst.Ellipsis)
    pattern = _pattern_call(operand)
    steps = _steps(pattern) if pattern is not None else []
    return bool(steps) and not _is_one(steps[-1][0])


def _is_one(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Integer) and value.evaluated_value == 1


def _steps(pattern: cst.Call) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Of an access pattern, [step, count] by dimension; empty where it is not written out."""
    given = {arg.keyword.value if arg.keyword is not None else "pattern": arg.value for arg in pattern.args}
    pairs = given.get("pattern")
    if len(given) != len(pattern.args) or not set(given) <= {"pattern", "offset"}:
        return []
    if not isinstance(pairs, (cst.List, cst.Tuple)):
        return []
    found = []
    for pair in pairs.elements:
        if not isinstance(pair.value, (cst.List, cst.Tuple)) or len(pair.value.elements) != 2:
            return []
        step, count = (element.value for element in pair.value.elements)
        found.append((step, count))
    return found


class PartReader:
    """Reads the operands of one transfer."""

    def __init__(self, code: KernelCode, transfer: Statement, sees_through: bool = False) -> None:
        """With `sees_through`, no stretch has a name in it that is defined as something else."""
        self._code, self._at, self._sees_through = code, transfer, sees_through
        self._reader = AccessReader(code)

    def part(self, operand: cst.BaseExpression) -> Part:
        """Raises IllegalSite."""
        pattern = _pattern_call(operand)
        return self._of_pattern(pattern) if pattern is not None else self._of_indices(operand)

    def _of_pattern(self, pattern: cst.Call) -> Part:
        assert isinstance(pattern.func, cst.Attribute) and isinstance(pattern.func.value, cst.Name)
        name, pairs = pattern.func.value.value, _steps(pattern)
        if len(pairs) < 2:
            raise IllegalSite(f"line {self._at.line}: the pattern on {name} is not written out")
        steps = [(self._number(step), self._number(count)) for step, count in pairs]
        offset = next((self._number(a.value) for a in pattern.args if a.keyword and a.keyword.value == "offset"), None)
        counts = tuple(count for _, count in steps)
        stride, count = steps[-1]
        if stride.value is not None and stride.value < 1:
            raise IllegalSite(f"line {self._at.line}: the pattern on {name} goes backwards")
        offset = offset if offset is not None else number(0)
        loop, place, places = self._place_within(stride, offset)
        width = (count - ONE) * stride + places
        rows = ", ".join(f"[{step}, {count}]" for step, count in steps[:-1])
        start = f", offset={offset - place}" if offset != place else ""
        text = f"{name}.ap(pattern=[{rows}, [1, {width}]]{start})"
        pick = (*(f"0 : {count}" for count in counts[:-1]), Dim(place, count, stride).text)
        return Part(name, counts, stride, Stretch(text, (*counts[:-1], width), pick, loop, places == stride))

    def _of_indices(self, operand: cst.BaseExpression) -> Part:
        if not isinstance(operand, cst.Subscript):
            access = self._reader.access(operand, self._at)
            return Part(access.name, access.lengths(access.kept), ONE, None)
        *others, last = operand.slice
        if isinstance(last.slice, cst.Index):
            access = self._reader.access(operand, self._at)
            if not access.dims[-1].dropped:
                return Part(access.name, access.lengths(access.kept), ONE, None)
            counts = access.lengths(access.kept)
            *rows, dim = access.dims
            size, start = (self._reader.full.expanded(each, self._at) for each in (access.sizes[-1], dim.start))
            loop, place, places = self._place_within(size, start)
            covered = places == size and start == place
            pick = (*(f"0 : {count}" for count in counts), str(dim.start))
            text = self._whole(access, Dim(number(0), access.sizes[-1]))
            stretch = Stretch(text, (*counts, access.sizes[-1]), pick, loop, covered, _rank(access))
            return Part(access.name, counts, access.sizes[-1], stretch)
        assert isinstance(last.slice, cst.Slice)
        step = self._number(last.slice.step) if last.slice.step is not None else ONE
        without = last.slice.with_changes(step=None, second_colon=cst.MaybeSentinel.DEFAULT)
        access = self._reader.access(operand.with_changes(slice=[*others, last.with_changes(slice=without)]), self._at)
        lengths = access.lengths(access.kept)
        if step == ONE:
            return Part(access.name, lengths, ONE, None)
        if step.value is not None and step.value < 1:
            raise IllegalSite(f"line {self._at.line}: {self._text(operand)} goes backwards")
        dim = access.dims[-1]
        steps = (dim.length - ONE).over(step)
        start = self._reader.full.expanded(dim.start, self._at)
        loop, place, places = self._place_within(step, start)
        wide = Dim(start - place, dim.length + place) if loop is not None else dim
        pick = (*(f"0 : {count}" for count in lengths[:-1]), f"{place} : {wide.length} : {step}")
        covered = places == step and start == place
        stretch = Stretch(self._whole(access, wide), (*lengths[:-1], wide.length), pick, loop, covered, _rank(access))
        return Part(access.name, (*lengths[:-1], steps + ONE) if steps is not None else None, step, stretch)

    def _whole(self, access: Access, last: Dim) -> str:
        dims = (*access.dims[:-1], last)
        if self._sees_through:
            seen = [(self._reader.full.expanded(d.start, self._at), d) for d in dims]
            dims = tuple(replace(dim, start=start) for start, dim in seen)
        return f"{access.name}[{', '.join(dim.text for dim in dims)}]"

    def _place_within(self, stride: Polynomial, start: Polynomial) -> tuple[Statement | None, Polynomial, Polynomial]:
        """A loop around that counts the places between two elements, its variable, and how many of them it takes;
        None, 0 and 1 where none does."""
        counters: set[str] = set()
        for loop in reversed(self._at.block.loops()):
            if loop.kind is not Kind.LOOP:
                break
            counters.add(loop.variable)
            if loop.count is None or loop.leaves or loop.variable not in start.factors:
                continue
            if any(loop in other.block.loops() for other in self._code.bindings(loop.variable)):
                continue  # bound again, it counts nothing
            step, rest = start.split(loop.variable)
            places = self._reader.full.polynomial(loop.count, loop)
            changing = self._reader.full.names(rest) & (loop.binds - counters)
            linear = step == ONE and loop.variable not in rest.factors and not changing
            if linear and self._reader.fits(places, stride, self._at):
                return loop, Polynomial({(loop.variable,): 1}), places
        return None, number(0), ONE

    def _number(self, expression: cst.BaseExpression) -> Polynomial:
        return self._reader.full.polynomial(expression, self._at)

    def _text(self, node: cst.CSTNode) -> str:
        return self._code.module.code_for_node(node)


def _rank(access: Access) -> int | None:
    return None if access.rank_is_known else len(access.dims)


def is_on_chip(code: KernelCode, end: cst.BaseExpression) -> bool:
    return code.regions_of(base_of(end)) <= ON_CHIP
