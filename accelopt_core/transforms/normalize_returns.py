"""A function that leaves early, with one way out: what it returns is bound to names of its own on every path.

    if fits:                               if fits:
        return size, 1                         taken, count = ...
    taken = size // 2             ->       else:
    return taken, 2                            ...

Only where each early return stands in branches, not in loops: then what follows a branch that leaves is its `else`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from accelopt_core.transforms.normalize_branches import opposite
from accelopt_core.transforms.normalize_names import fresh_name
from accelopt_core.transforms.syntax import descendants

_MOST_TWICE = 3
"""Statements that may stand in both branches."""


@dataclass(frozen=True)
class OneExit:
    body: tuple[cst.BaseStatement, ...]
    """Without a return."""
    result: cst.BaseExpression | None
    """Of names that nothing else in the function has; None where it returns nothing."""


class _NoBranch(Exception):
    """A return stands where the statements after it cannot be put aside."""


def with_one_exit(function: cst.FunctionDef, body: Sequence[cst.BaseStatement]) -> OneExit | None:
    """`body`: of the function, without its docstring. None where an early return is not one of a branch."""
    values = [node.value for each in body for node in descendants(each) if isinstance(node, cst.Return)]
    said = [value for value in values if value is not None and not _is_none(value)]
    used = {node.value for each in (*body, function.params) for node in descendants(each) if isinstance(node, cst.Name)}
    names: list[str] = []
    if said:
        parts = [_parts(value) for value in values]
        lengths = {len(each) for each in parts}
        several = lengths.pop() if len(lengths) == 1 and _always_leaves(body) else 0
        wanted = _wanted(function, parts[-1] if several else [])
        for name in wanted if several else [function.name.value.strip("_")]:
            names.append(fresh_name(name, used) if name in used else name)
            used.add(names[-1])
    try:
        made = _single(body, names)
    except _NoBranch:
        return None
    if not names:
        return OneExit(tuple(made), None)
    if len(names) == 1:
        return OneExit(tuple(made), cst.Name(names[0]))
    return OneExit(tuple(made), cst.Tuple([cst.Element(cst.Name(name)) for name in names], lpar=(), rpar=()))


def _is_none(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Name) and value.value == "None"


def _parts(value: cst.BaseExpression | None) -> list[cst.BaseExpression]:
    """Of a tuple of two or more; none of anything else."""
    if not isinstance(value, cst.Tuple) or any(isinstance(each, cst.StarredElement) for each in value.elements):
        return []
    return [each.value for each in value.elements] if len(value.elements) > 1 else []


def _wanted(function: cst.FunctionDef, parts: Sequence[cst.BaseExpression]) -> list[str]:
    """Names for what it returns: as the last return has them."""
    own = f"{function.name.value.strip('_')}_"
    return [part.value if isinstance(part, cst.Name) else f"{own}{at}" for at, part in enumerate(parts)]


def _always_leaves(body: Sequence[cst.CSTNode]) -> bool:
    last = body[-1] if body else None
    if isinstance(last, cst.SimpleStatementLine):
        return isinstance(last.body[-1], (cst.Return, cst.Raise))
    if isinstance(last, cst.If):
        return last.orelse is not None and _always_leaves(_lines(last.body)) and _always_leaves(_otherwise(last))
    return False


def _lines(block: cst.BaseSuite) -> Sequence[cst.BaseStatement]:
    if isinstance(block, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine(block.body)]
    return [each for each in block.body if isinstance(each, cst.BaseStatement)]


def _otherwise(node: cst.If) -> Sequence[cst.BaseStatement]:
    if node.orelse is None:
        return []
    return [node.orelse] if isinstance(node.orelse, cst.If) else _lines(node.orelse.body)


def _single(body: Sequence[cst.BaseStatement], names: Sequence[str]) -> list[cst.BaseStatement]:
    """The same with its results bound at the end of every path. Raises _NoBranch."""
    for at, each in enumerate(body):
        before, rest = list(body[:at]), body[at + 1 :]
        if isinstance(each, cst.SimpleStatementLine):
            small = each.body[-1]
            if isinstance(small, cst.Return):
                kept = [each.with_changes(body=each.body[:-1])] if len(each.body) > 1 else []
                given = _given(small.value, names)
                if given and not kept:
                    given[0] = given[0].with_changes(leading_lines=each.leading_lines)
                if given:
                    given[-1] = given[-1].with_changes(trailing_whitespace=each.trailing_whitespace)
                return [*before, *kept, *given]
            if isinstance(small, cst.Raise):
                return [*before, each]
        if not any(isinstance(node, cst.Return) for node in descendants(each)):
            continue
        if not isinstance(each, cst.If):
            raise _NoBranch
        inside, otherwise = _lines(each.body), _otherwise(each)
        if not rest or _always_leaves(inside):
            otherwise = [*otherwise, *rest]
        elif _always_leaves(otherwise):
            inside = [*inside, *rest]
        elif sum(isinstance(node, cst.BaseStatement) for line in rest for node in descendants(line)) <= _MOST_TWICE:
            inside, otherwise = [*inside, *rest], [*otherwise, *(line.deep_clone() for line in rest)]
        else:
            raise _NoBranch
        return [*before, _branch(each, _single(inside, names), _single(otherwise, names))]
    return [*body, *_given(None, names)]


def _given(value: cst.BaseExpression | None, names: Sequence[str]) -> list[cst.SimpleStatementLine]:
    if not names:
        return []
    values = _parts(value) if len(names) > 1 else [value if value is not None else cst.Name("None")]
    return [
        cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], each)])
        for name, each in zip(names, values)
    ]


def _branch(node: cst.If, inside: list[cst.BaseStatement], otherwise: list[cst.BaseStatement]) -> cst.If:
    if not inside and otherwise and not _is_commented(node.body) and not isinstance(node.orelse, cst.If):
        return node.with_changes(test=opposite(node.test), body=cst.IndentedBlock(otherwise), orelse=None)
    header = node.body.header if isinstance(node.body, cst.IndentedBlock) else cst.TrailingWhitespace()
    footer = node.body.footer if isinstance(node.body, cst.IndentedBlock) else ()
    body = cst.IndentedBlock(inside or [_pass()], header=header, footer=footer)
    orelse: cst.If | cst.Else | None = None
    if len(otherwise) == 1 and isinstance(otherwise[0], cst.If):
        orelse = otherwise[0]
    elif isinstance(node.orelse, cst.Else) and isinstance(node.orelse.body, cst.IndentedBlock):
        orelse = node.orelse.with_changes(body=node.orelse.body.with_changes(body=otherwise or [_pass()]))
    elif otherwise:
        orelse = cst.Else(cst.IndentedBlock(otherwise))
    return node.with_changes(body=body, orelse=orelse)


def _is_commented(block: cst.BaseSuite) -> bool:
    """It says why it leaves."""
    return "#" in cst.Module([]).code_for_node(block)


def _pass() -> cst.SimpleStatementLine:
    return cst.SimpleStatementLine([cst.Pass()])
