"""Compute a reciprocal on the Scalar engine, one element a cycle, instead of on Vector, eight cycles each.

The Scalar engine looks its functions up, so the result may be less exact: verification decides.
Costs per element: AWS's cost formulas for reciprocal (Vector) and activation (Scalar).
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accelopt_core.transforms.base import AnalysisContext, IllegalSite, Site, SiteGone
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement, read_kernel, replace_nodes


class ReciprocalOnScalar:
    name = "reciprocal-on-scalar"

    def describe(self) -> str:
        return "Replace nisa.reciprocal (Vector, eight cycles an element) by an activation (Scalar, one)."

    def analyze(self, module: cst.Module, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for name, statement in _reciprocals(code):
            try:
                _check(code, statement)
            except IllegalSite:
                continue
            found.append(
                Site(
                    self.name,
                    name,
                    f"compute the reciprocal {name} on the Scalar engine",
                    statement.line,
                    "the activation reads and writes the same tiles; verification decides whether it is exact enough",
                    "the Vector engine needs eight cycles for each reciprocal, the Scalar engine one",
                )
            )
        return tuple(found)

    def apply(self, module: cst.Module, site: Site) -> cst.Module:
        code = read_kernel(module)
        statement = dict(_reciprocals(code)).get(site.key)
        if statement is None:
            raise SiteGone(f"{site.key}: the kernel has no reciprocal into {site.key}")
        isa, language = _check(code, statement)
        text = {
            keyword: code.module.code_for_node(value)
            for keyword in ("dst", "data")
            if (value := code.argument(statement, keyword)) is not None
        }
        call = cst.parse_expression(
            f"{isa}.activation(dst={text['dst']}, op={language}.reciprocal, data={text['data']})"
        )
        assert statement.call is not None
        result = replace_nodes(code.module, {statement.call: call})
        assert isinstance(result, cst.Module)
        return cst.parse_module(result.code)


def _reciprocals(code: KernelCode) -> Iterator[tuple[str, Statement]]:
    for statement in code.statements():
        if statement.kind is Kind.INSTRUCTION and statement.operation == "reciprocal":
            dst = code.argument(statement, "dst")
            if isinstance(dst, cst.Name):
                yield dst.value, statement


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
