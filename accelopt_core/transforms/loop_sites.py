"""Loops as sites: naming one in a site's key, and taking several of its iterations at a time."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from accelopt_core.transforms.base import IllegalSite, SiteGone
from accelopt_core.transforms.kernel_code import KernelCode, Statement
from accelopt_core.transforms.syntax import parsed_expression, parsed_statement, replace_nodes


def lines_of(loop: Statement) -> set[int]:
    """Every line with a statement of the loop on it."""
    return {statement.line for statement in loop.walk()}


def loop_at(code: KernelCode, place: str, key: str) -> Statement:
    """The loop that `m#1` names: the second of the kernel, if it runs over m. Raises SiteGone."""
    variable, _, number = place.partition("#")
    loops = list(code.loops())
    if not number.isdecimal() or int(number) >= len(loops) or loops[int(number)].variable != variable:
        raise SiteGone(f"{key}: the kernel has no such loop" + (f" over {variable}" if variable else ""))
    return loops[int(number)]


def loop_and_factor(code: KernelCode, key: str) -> tuple[Statement, int]:
    """What `m#1x4` names: that loop, four iterations at a time. Raises SiteGone or IllegalSite."""
    place, _, factor = key.rpartition("x")
    loop = loop_at(code, place, key)
    if not factor.isdecimal() or int(factor) < 2:
        raise IllegalSite(f"{factor} iterations at once: it must be a number of at least 2")
    return loop, int(factor)


def several_at_a_time(
    code: KernelCode, loop: Statement, factor: int, variable: str, body: Sequence[cst.BaseStatement]
) -> cst.Module:
    """The loop replaced by one over blocks of `factor` iterations, counted by `variable`, with that body.

    An assertion before it states that the iterations come out even.
    """
    node = loop.node
    assert isinstance(node, cst.For) and isinstance(node.body, cst.IndentedBlock) and loop.count is not None
    count = as_factor(code.module.code_for_node(loop.count))
    blocks = node.with_changes(
        target=cst.Name(variable),
        iter=replace_nodes(node.iter, {loop.count: parsed_expression(f"{count} // {factor}")}),
        body=node.body.with_changes(body=body),
        leading_lines=(),
    )
    check = parsed_statement(
        f'assert {count} % {factor} == 0, "{factor} iterations over {loop.variable} at a time must come out even"'
    )
    assert isinstance(check, cst.SimpleStatementLine)
    parent = loop.block.node
    at = list(parent.body).index(node)
    around = [*parent.body[:at], check.with_changes(leading_lines=node.leading_lines), blocks, *parent.body[at + 1 :]]
    result = replace_nodes(code.module, {parent: parent.with_changes(body=around)})
    assert isinstance(result, cst.Module)
    return result


def as_factor(text: str) -> str:
    """An expression's text, ready to be multiplied or divided."""
    return text if text.isidentifier() or text.isdecimal() else f"({text})"
