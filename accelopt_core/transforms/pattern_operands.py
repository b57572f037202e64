"""Operands that are an access pattern of a buffer in HBM, and the same of many iterations of a loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from accelopt_core.transforms.base import IllegalSite
from accelopt_core.transforms.index_algebra import Polynomial, number
from accelopt_core.transforms.kernel_code import KernelCode, Statement
from accelopt_core.transforms.operand_access import HBM, ONE, AccessReader, Iterations
from accelopt_core.transforms.tile_shapes import pattern_of


@dataclass(frozen=True)
class Pattern:
    """`name.ap(pattern=pairs, offset=step * variable + rest)`."""

    name: str
    pairs: tuple[tuple[Polynomial, Polynomial], ...]
    """[stride, count] of every dimension."""
    step: Polynomial
    rest: Polynomial

    def merged(self, iterations: Iterations) -> str:
        """Of all iterations, which are the first dimension."""
        pairs = list(self.pairs)
        if len(pairs) > 1 and pairs[0][1] == ONE:
            del pairs[0]
        pairs.insert(0, (self.step, iterations.count))
        pattern = ", ".join(f"[{stride}, {count}]" for stride, count in pairs)
        return f"{self.name}.ap(pattern=[{pattern}], offset={self.step * iterations.first + self.rest})"

    def keeps_within_its_step(self, reader: AccessReader, bound: frozenset[str]) -> Iterator[str]:
        """Conditions under which no two iterations touch the same element; `bound` are names that change within one."""
        inner = Polynomial(
            {
                monomial: times
                for monomial, times in self.rest.terms.items()
                if reader.indices.names(Polynomial({monomial: 1})) & bound
            }
        )
        reach = inner + ONE
        for stride, count in self.pairs:
            reach += stride * (count - ONE)
        if inner != number(0):
            yield f"0 <= {inner}"
        if reach != self.step:
            yield f"{reach} <= {self.step}"


def is_pattern(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Call) and pattern_of(value) is not None


def read_pattern(code: KernelCode, reader: AccessReader, variable: str, value: cst.Call, at: Statement) -> Pattern:
    """Raises IllegalSite for anything but an argument, or a buffer, of HBM, with strides that do not change."""
    text, pairs = code.module.code_for_node(value), pattern_of(value)
    assert isinstance(value.func, cst.Attribute)
    base = value.func.value
    if pairs is None or not isinstance(base, cst.Name) or not code.regions_of(base) <= HBM or not code.roots_of(
        frozenset({base.value})
    ) == {base.value}:  # fmt: skip
        raise IllegalSite(f"line {at.line}: {text} is no access pattern of a buffer in HBM")
    given = {
        arg.keyword.value if arg.keyword else ("pattern", "offset")[k]: arg.value for k, arg in enumerate(value.args)
    }
    offset = reader.number(given["offset"], at) if "offset" in given else number(0)
    step, rest = offset.split(variable)
    found = tuple((reader.number(stride, at), reader.number(count, at)) for stride, count in pairs)
    if any(variable in each.factors for pair in found for each in pair):
        raise IllegalSite(f"line {at.line}: how much it takes changes with {variable}")
    if not all(each.adds_up for each in (step, *(stride for stride, _ in found))):
        raise IllegalSite(f"line {at.line}: {text} may go backwards")
    return Pattern(base.value, found, step, rest)
