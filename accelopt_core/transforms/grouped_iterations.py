"""A loop over groups of iterations: what works on several at once is done once for each, the rest keeps its order."""

from __future__ import annotations

import libcst as cst

from accelopt_core.transforms.index_algebra import Polynomial, number
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.loop_sites import as_factor
from accelopt_core.transforms.merged_loop import MergedLoop
from accelopt_core.transforms.operand_access import Iterations
from accelopt_core.transforms.syntax import parsed_expression, parsed_statement, replace_nodes

FACTORS = (2, 4, 8)


def grouped(code: KernelCode, merged: MergedLoop, factor: int) -> list[cst.BaseStatement]:
    """In place of the loop: what is merged once for every group, what stays one iteration after the other."""
    loop = merged.loop
    assert isinstance(loop.node, cst.For) and loop.count is not None
    group, one = code.fresh_name(f"{loop.variable}_group"), code.fresh_name("i")
    count = number(factor)
    first = count * Polynomial({(group,): 1})
    iterations = Iterations(loop.variable, first, count)
    body: list[cst.BaseStatement] = []
    for statement in merged.statements:
        if statement.kind is Kind.ALLOCATE and merged.is_made_once(statement):
            body.append(merged.allocation(statement, count))
    for run in merged.runs:
        if run[0] in merged.merged:
            body.append(merged.statement(run[0], iterations))
        else:
            here = parsed_statement(f"{loop.variable} = {first} + {one}")
            body.append(_loop(loop, one, str(factor), [here, *merged.one_by_one(run, one, count)]))
    trips = as_factor(code.module.code_for_node(loop.count))
    check = parsed_statement(
        f'assert {trips} % {factor} == 0, "{factor} iterations over {loop.variable} at a time must come out even"'
    )
    grouped = _loop(loop, group, f"{trips} // {factor}", body)
    return merged.around([check, grouped])


def _loop(loop: Statement, variable: str, count: str, body: list[cst.BaseStatement]) -> cst.BaseStatement:
    """A loop of the same kind."""
    node = loop.node
    assert isinstance(node, cst.For) and isinstance(node.iter, cst.Call) and isinstance(node.body, cst.IndentedBlock)
    assert loop.count is not None
    ranged = replace_nodes(node.iter, {loop.count: parsed_expression(count)})
    assert isinstance(ranged, cst.Call)
    return node.with_changes(
        target=cst.Name(variable),
        iter=ranged,
        body=node.body.with_changes(body=body, header=cst.TrailingWhitespace(), footer=()),
        leading_lines=(),
    )
