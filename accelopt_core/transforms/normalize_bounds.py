"""Every tile whole: bounds that cut the last one off, without the cut, and an assertion that there is nothing to cut.

    for i in range(ceil(N / T)):                          assert T * (ceil(N / T) - 1) + T <= N, "..."
        stop = min(i * T + T, N)                          for i in range(ceil(N / T)):
        rows = stop - i * T                      ->           stop = T * i + T
        tile = nl.ndarray((rows, W), ...)                     rows = T
                                                              tile = nl.ndarray((rows, W), ...)

What has the same size in every iteration can be moved and merged. Shapes that do not come out even no longer compile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from accelopt_core.transforms.index_algebra import Indices, number
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.syntax import descendants, name_nodes, parsed_expression, parsed_statement


def cuts(code: KernelCode) -> list[tuple[cst.Call, int]]:
    """Every bound that may cut a tile off, in order, and which of its arguments it is where it does not."""
    indices = _of_loops(code)
    found = []
    for statement in code.statements():
        if statement.body is not None or statement.kind is Kind.OPAQUE:
            continue
        for call in _cuts(code, statement):
            uncut = _uncut(indices, statement, call)
            if uncut is not None:
                found.append((call, [arg.value for arg in call.args].index(uncut[1])))
    return found


def with_whole_tiles(code: KernelCode, only: Sequence[int] | None = None) -> cst.Module:
    """The module; the very one of `code` when no bound cuts a tile off. `only`: these, by place among the `cuts`."""
    wanted = [call for call, _ in cuts(code)]
    if only is not None:
        wanted = [call for at, call in enumerate(wanted) if at in only]
    indices = _of_loops(code)
    whole: dict[cst.CSTNode, cst.CSTNode] = {}
    stated: dict[cst.CSTNode, dict[str, cst.BaseStatement]] = {}
    """Before each loop, by their text."""
    for statement in code.statements():
        if statement.body is not None or statement.kind is Kind.OPAQUE:
            continue
        for call in _cuts(code, statement):
            found = _uncut(indices, statement, call)
            if found is not None and call in wanted:
                loop, kept, condition = found
                alone = call is _defined(statement)
                whole[call] = kept if alone else kept.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
                why = f"the last iteration over {loop.variable} must be a whole one"
                text = f'assert {condition}, "{why}"'
                stated.setdefault(loop.node, {})[text] = parsed_statement(text)
    if not whole:
        return code.module
    result = code.module.visit(_Edit(whole, stated))
    assert isinstance(result, cst.Module)
    return result


def with_sizes_simplified(code: KernelCode) -> cst.Module:
    """The module with `rows = T` for `rows = stop - start`; the very one of `code` when there is none."""
    indices = _of_loops(code)
    changes: dict[cst.CSTNode, cst.CSTNode] = {}
    for statement in code.statements():
        value = _defined(statement)
        counted = frozenset(loop.variable for loop in statement.block.loops() if loop.variable)
        if not isinstance(value, cst.BinaryOperation) or not counted:
            continue
        simple = indices.polynomial(value, statement)
        parts = [indices.polynomial(name, statement) for name in name_nodes(value)]
        depended = any(counted & indices.names(part) for part in parts)
        if depended and not counted & indices.names(simple):
            changes[value] = parsed_expression(str(simple))
    return code.changed(changes) if changes else code.module


def _of_loops(code: KernelCode) -> Indices:
    """Sees through what is defined in loops, and keeps all other names."""
    inside = [s for s in code.statements() if s.kind is Kind.DEFINE and any(o.variable for o in s.block.loops())]
    return Indices(code, frozenset(name for statement in inside for name in statement.binds))


def _defined(statement: Statement) -> cst.BaseExpression | None:
    node = statement.node
    if statement.kind is not Kind.DEFINE or not isinstance(node, cst.SimpleStatementLine):
        return None
    small = node.body[0]
    return small.value if isinstance(small, cst.Assign) else None


def _cuts(code: KernelCode, statement: Statement) -> list[cst.Call]:
    """Calls of Python's own `min` with two arguments; of those inside one another the outer."""
    if not code.is_pythons_own("min"):
        return []
    found: list[cst.Call] = []
    inside: set[cst.CSTNode] = set()
    for node in descendants(statement.node):
        if isinstance(node, cst.Call) and node not in inside and isinstance(node.func, cst.Name):
            plain = all(arg.keyword is None and not arg.star for arg in node.args)
            if node.func.value == "min" and len(node.args) == 2 and plain:
                found.append(node)
                inside |= set(descendants(node))
    return found


def _uncut(indices: Indices, statement: Statement, call: cst.Call) -> tuple[Statement, cst.BaseExpression, str] | None:
    """The loop whose last iteration alone it may cut, what it is in all others, and when in that one too."""
    left, right = (indices.polynomial(arg.value, statement) for arg in call.args)
    for loop in reversed(statement.block.loops()):
        slope = (left - right).split(loop.variable)[0] if loop.count is not None else number(0)
        if loop.count is None or not slope.terms or loop.variable in slope.factors or loop.leaves:
            continue
        if not slope.adds_up and not (number(-1) * slope).adds_up:
            continue
        kept, bound = (left, right) if slope.adds_up else (right, left)
        last = indices.polynomial(loop.count, loop) - number(1)
        ends = [step * last + rest for step, rest in (each.split(loop.variable) for each in (kept, bound))]
        if not any(indices.names(end) & loop.binds for end in ends):
            return loop, call.args[0 if kept is left else 1].value, f"{ends[0]} <= {ends[1]}"
    return None


class _Edit(cst.CSTTransformer):
    def __init__(
        self, whole: Mapping[cst.CSTNode, cst.CSTNode], stated: Mapping[cst.CSTNode, Mapping[str, cst.BaseStatement]]
    ) -> None:
        self._whole, self._stated = whole, stated

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:  # libcst's name
        made = self._whole.get(original_node)
        return made if isinstance(made, cst.BaseExpression) else updated_node

    def leave_For(  # libcst's name
        self, original_node: cst.For, updated_node: cst.For
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        checks = list(self._stated.get(original_node, {}).values())
        if not checks:
            return updated_node
        leading = updated_node.leading_lines
        checks[0] = checks[0].with_changes(leading_lines=leading)
        return cst.FlattenSentinel([*checks, updated_node.with_changes(leading_lines=())])
