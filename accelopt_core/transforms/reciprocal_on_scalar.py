"""Compute a reciprocal on the Scalar engine, one element a cycle, instead of on Vector, eight cycles each.

The Scalar engine looks its functions up, so the result may be less exact: verification decides.
Costs per element: AWS's cost formulas for reciprocal (Vector) and activation (Scalar).
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import IllegalSite, Site
from accelopt_core.transforms.kernel_code import KernelCode, Statement
from accelopt_core.transforms.one_instruction import InstructionTransform, parts_written, written_by
from accelopt_core.transforms.syntax import parsed_expression


class ReciprocalOnScalar(InstructionTransform[tuple[str, str]]):
    name = "reciprocal-on-scalar"
    addresses = frozenset({Cause.ELEMENTWISE, Cause.WAITING})
    gone = "has no reciprocal into a tile"

    def describe(self) -> str:
        return "Replace nisa.reciprocal (Vector, eight cycles an element) by an activation (Scalar, one)."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        return written_by(code, "reciprocal")

    def passed_over(self, code: KernelCode) -> Iterator[tuple[str, Statement, str]]:
        return parts_written(code, "reciprocal")

    def check(self, code: KernelCode, key: str, instruction: Statement) -> tuple[str, str]:
        return _check(code, instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: tuple[str, str]) -> Site:
        return Site(
            self.name,
            key,
            f"compute the reciprocal {key} on the Scalar engine",
            instruction.line,
            "the activation reads and writes the same tiles; verification decides whether it is exact enough",
            "the Vector engine needs eight cycles for each reciprocal, the Scalar engine one",
        )

    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: tuple[str, str]) -> cst.Module:
        isa, language = found
        data = code.argument(instruction, "data")
        assert instruction.call is not None and data is not None
        shown = code.module.code_for_node(data)
        call = f"{isa}.activation(dst={key}, op={language}.reciprocal, data={shown})"
        return code.changed({instruction.call: parsed_expression(call)})


def _check(code: KernelCode, statement: Statement) -> tuple[str, str]:
    """How the kernel writes `nki.isa` and `nki.language`. Raises IllegalSite."""
    assert statement.call is not None
    keywords = sorted(arg.keyword.value if arg.keyword is not None else "" for arg in statement.call.args)
    if keywords != ["data", "dst"]:
        raise IllegalSite(f"line {statement.line} passes more than dst and data, or passes them by position")
    language = code.name_of_module("nki.language")
    if not isinstance(statement.call.func, cst.Attribute) or not language:
        raise IllegalSite("the names of nki.isa and nki.language are not at hand")
    for keyword in ("dst", "data"):
        value = code.argument(statement, keyword)
        assert value is not None
        if not code.regions_of(value) <= {"sbuf", "psum"} or not code.regions_of(value):
            raise IllegalSite(f"line {statement.line}: it cannot be told where {keyword} lies")
    return code.module.code_for_node(statement.call.func.value), language
