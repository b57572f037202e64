"""Branches as they are taken at the shapes of a task, and an assertion that this is how they are taken.

    def kernel(x, stride=1):                          def kernel(x, stride=1):
        for i in range(N):                                assert stride == 1, "..."
            if stride == 1:                    ->         for i in range(N):
                nisa.dma_copy(...)                            nisa.dma_copy(...)
            else:
                ...

Which way is a guess of `outcomes`; where it is wrong the kernel no longer compiles, and is never silently another one.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Union

import libcst as cst

from accelopt_core.transforms.index_algebra import Indices, Polynomial, number
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.scopes import bound_by
from accelopt_core.transforms.syntax import (
    bound_names,
    descendants,
    loaded_names,
    name_nodes,
    parsed_statement,
    replace_nodes,
    text_of,
)

WHY = "made for shapes where this holds"

_OPPOSITE: Mapping[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
    cst.Equal: cst.NotEqual,
    cst.NotEqual: cst.Equal,
    cst.LessThan: cst.GreaterThanEqual,
    cst.GreaterThanEqual: cst.LessThan,
    cst.GreaterThan: cst.LessThanEqual,
    cst.LessThanEqual: cst.GreaterThan,
    cst.Is: cst.IsNot,
    cst.IsNot: cst.Is,
}
_COMPARED: Mapping[type[cst.BaseCompOp], Callable[[object, object], bool]] = {
    cst.Equal: operator.eq,
    cst.NotEqual: operator.ne,
    cst.Is: operator.is_,
    cst.IsNot: operator.is_not,
}
_NO_LITERAL = object()
_KNOWN_CALLS = frozenset({"min", "max", "len", "abs", "int"})


def conditions(function: cst.FunctionDef) -> list[Union[cst.If, cst.IfExp]]:
    """In the order of the source."""
    return [node for node in descendants(function.body) if isinstance(node, (cst.If, cst.IfExp))]


def with_branches_taken(code: KernelCode, taken: Mapping[int, bool]) -> cst.Module:
    """`taken`: by place among the conditions; all others stay."""
    found = conditions(code.function)
    return _taken(code, {found[at]: way for at, way in taken.items() if at < len(found)})


def with_decided_branches(code: KernelCode) -> cst.Module:
    """What the text itself decides (`if None is None`), with no assertion for it; and no assertion of such."""
    ways: dict[cst.CSTNode, bool] = {
        node: way for node in conditions(code.function) if (way := decided(node.test)) is not None
    }
    made = _taken(code, ways)
    if made is not code.module:
        return made
    asserted = [each for each in code.statements() if (test := _asserted(each.node)) is not None and decided(test)]
    return _without(code, [each.node for each in asserted] or _unused_texts(code))


def _unused_texts(code: KernelCode) -> list[cst.CSTNode]:
    """What an assertion would have said that is none any more."""
    loaded = [name.value for name in name_nodes(code.function)]
    found: list[cst.CSTNode] = []
    for statement in code.statements():
        line = statement.node
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
        if not isinstance(small, cst.Assign) or not isinstance(small.value, (cst.SimpleString, cst.FormattedString)):
            continue
        names = bound_names(small.targets[0].target)
        calls = any(isinstance(node, cst.Call) for node in descendants(small.value))
        if len(small.targets) == len(names) == 1 and not calls and not names & (code.captured | set(loaded)):
            found.append(line)
    return found


def _taken(code: KernelCode, ways: Mapping[cst.CSTNode, bool]) -> cst.Module:
    if not ways:
        return code.module
    made = _Taken(code.module, ways)
    body = code.function.body
    assert isinstance(body, cst.IndentedBlock)
    result = code.module.deep_replace(body, body.with_changes(body=made.block(body)))
    assert isinstance(result, cst.Module)
    return result


class _Taken:
    def __init__(self, module: cst.Module, ways: Mapping[cst.CSTNode, bool]) -> None:
        self._module, self._ways = module, ways

    def block(self, block: cst.BaseSuite) -> list[cst.BaseStatement]:
        """Its statements after it, at least one; with the comments on its first line and after its last."""
        made = [each for statement in _statements(block) for each in self._statement(statement)]
        if not made:
            made = [cst.SimpleStatementLine([cst.Pass()])]
        if isinstance(block, cst.IndentedBlock):
            if block.header.comment is not None:
                made[0] = _led_by(made[0], [cst.EmptyLine(comment=block.header.comment)])
            if any(line.comment is not None for line in block.footer):
                made.append(cst.SimpleStatementLine([cst.Pass()], leading_lines=block.footer))
        return made

    def _statement(self, node: cst.BaseStatement) -> list[cst.BaseStatement]:
        if isinstance(node, cst.If):
            return self._if(node)
        if isinstance(node, cst.For) and isinstance(node.body, cst.IndentedBlock):
            return self._loop(node, node.body)
        if isinstance(node, cst.SimpleStatementLine):
            return self._line(node)
        return [node]

    def _inside(self, block: cst.IndentedBlock) -> list[cst.BaseStatement]:
        return [each for statement in _statements(block) for each in self._statement(statement)]

    def _loop(self, node: cst.For, block: cst.IndentedBlock) -> list[cst.BaseStatement]:
        """Assertions about what is the same in all iterations stand before it."""
        bound = frozenset().union(*(bound_by(each) for each in descendants(node)))
        kept: list[cst.BaseStatement] = []
        before: dict[str, cst.BaseStatement] = {}
        comments: list[cst.EmptyLine] = []
        for each in self._inside(block):
            test = _test_of(each)
            if test is not None and each not in block.body and not loaded_names(test) & bound and _is_plain(test):
                assert isinstance(each, cst.SimpleStatementLine)
                before.setdefault(self._module.code_for_node(test), each.with_changes(leading_lines=()))
                comments += each.leading_lines
            else:
                kept.append(_led_by(each, comments))
                comments = []
        body = block.with_changes(
            body=kept or [cst.SimpleStatementLine([cst.Pass()])], footer=[*comments, *block.footer]
        )
        loop = node.with_changes(body=body)
        if not before:
            return [loop]
        checks = list(before.values())
        return [_led_by(checks[0], node.leading_lines), *checks[1:], loop.with_changes(leading_lines=())]

    def _if(self, node: cst.If) -> list[cst.BaseStatement]:
        way = self._ways.get(node)
        if way is None:
            body, orelse = node.body, node.orelse
            if isinstance(body, cst.IndentedBlock):
                body = body.with_changes(body=self._inside(body))
            if isinstance(orelse, cst.If):
                made = self._if(orelse)
                alone = made[0] if len(made) == 1 else None
                orelse = alone if isinstance(alone, cst.If) else cst.Else(cst.IndentedBlock(made))
            elif orelse is not None and isinstance(orelse.body, cst.IndentedBlock):
                orelse = orelse.with_changes(body=orelse.body.with_changes(body=self._inside(orelse.body)))
            return [node.with_changes(body=body, orelse=orelse)]
        chosen: list[cst.BaseStatement] = []
        if way:
            chosen = self.block(node.body)
        elif isinstance(node.orelse, cst.If):
            chosen = self._if(node.orelse)
        elif node.orelse is not None:
            chosen = self.block(node.orelse.body)
            chosen[0] = _led_by(chosen[0], node.orelse.leading_lines)
        return _all_led_by(self._assertions(node.test, way, node.leading_lines), chosen, node.leading_lines)

    def _line(self, node: cst.SimpleStatementLine) -> list[cst.BaseStatement]:
        """Conditional expressions that are what a name is bound to."""
        small = node.body[0]
        value = small.value if len(node.body) == 1 and isinstance(small, cst.Assign) else None
        way = self._ways.get(value) if isinstance(value, cst.IfExp) else None
        if way is None or not isinstance(value, cst.IfExp):
            return [node]
        chosen = value.body if way else value.orelse
        if value.lpar and not chosen.lpar:
            chosen = chosen.with_changes(lpar=value.lpar, rpar=value.rpar)
        changed = replace_nodes(node, {value: chosen})
        assert isinstance(changed, cst.SimpleStatementLine)
        checks = self._assertions(value.test, way, node.leading_lines)
        return _all_led_by(checks, [changed.with_changes(leading_lines=())], node.leading_lines)

    def _assertions(
        self, test: cst.BaseExpression, way: bool, lines: Sequence[cst.EmptyLine]
    ) -> list[cst.BaseStatement]:
        """None of what the text says itself; then `lines` lead nothing."""
        return [] if decided(test) is way else [_led_by(self._assertion(test, way), lines)]

    def _assertion(self, test: cst.BaseExpression, way: bool) -> cst.SimpleStatementLine:
        text = self._module.code_for_node(test if way else opposite(test))
        made = parsed_statement(f'assert ({text}), "{WHY}"' if "\n" in text else f'assert {text}, "{WHY}"')
        assert isinstance(made, cst.SimpleStatementLine)
        return made


def _all_led_by(
    checks: list[cst.BaseStatement], chosen: list[cst.BaseStatement], lines: Sequence[cst.EmptyLine]
) -> list[cst.BaseStatement]:
    """The lines above a branch that is none any more stay where it was."""
    if checks or not lines:
        return [*checks, *chosen]
    said = [line for line in lines if line.comment is not None]
    if not chosen:
        return [cst.SimpleStatementLine([cst.Pass()], leading_lines=said)] if said else []
    return [_led_by(chosen[0], said), *chosen[1:]]


def decided(test: cst.BaseExpression) -> bool | None:
    """What a condition comes to by its text alone; None where it takes more."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        inner = decided(test.expression)
        return None if inner is None else not inner
    if isinstance(test, cst.BooleanOperation):
        sides = (decided(test.left), decided(test.right))
        decides = isinstance(test.operator, cst.Or)
        if sides[0] is decides:
            return decides
        return sides[1] if sides[0] is not None and sides[1] is not None else None
    if isinstance(test, cst.Comparison):
        if len(test.comparisons) != 1:
            return None
        (target,) = test.comparisons
        compare = _COMPARED.get(type(target.operator))
        sides_ = [_literal(side) for side in (test.left, target.comparator)]
        if compare is None or any(side is _NO_LITERAL for side in sides_):
            return None
        if isinstance(target.operator, (cst.Is, cst.IsNot)) and not any(side is None for side in sides_):
            return None
        return bool(compare(*sides_))
    value = _literal(test)
    return value if isinstance(value, bool) else None


def _literal(node: cst.BaseExpression) -> object:
    try:
        return ast.literal_eval(text_of(node).strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _NO_LITERAL


def opposite(test: cst.BaseExpression) -> cst.BaseExpression:
    """What holds where the test does not."""
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        (target,) = test.comparisons
        other = _OPPOSITE.get(type(target.operator))
        if other is not None:
            return test.with_changes(comparisons=[target.with_changes(operator=other())])
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or):
        return test.with_changes(left=opposite(test.left), operator=cst.And(), right=opposite(test.right))
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return test.expression
    inside = test if test.lpar else test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.UnaryOperation(cst.Not(whitespace_after=cst.SimpleWhitespace(" ")), inside)


def _statements(block: cst.BaseSuite) -> Iterator[cst.BaseStatement]:
    if isinstance(block, cst.SimpleStatementSuite):
        yield cst.SimpleStatementLine(block.body)
    else:
        assert isinstance(block, cst.IndentedBlock)
        for each in block.body:
            assert isinstance(each, cst.BaseStatement)
            yield each


def _is_plain(test: cst.BaseExpression) -> bool:
    """Can be asked earlier: nothing it calls does anything."""
    calls = [node.func for node in descendants(test) if isinstance(node, cst.Call)]
    return all(isinstance(func, cst.Name) and func.value in _KNOWN_CALLS for func in calls)


def _asserted(statement: cst.CSTNode) -> cst.BaseExpression | None:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1 else None
    return small.test if isinstance(small, cst.Assert) else None


def _test_of(statement: cst.CSTNode) -> cst.BaseExpression | None:
    """Of an assertion made here."""
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if not isinstance(small, cst.Assert) or not isinstance(small.msg, cst.SimpleString):
        return None
    return small.test if small.msg.evaluated_value == WHY else None


def _led_by(statement: cst.BaseStatement, lines: Sequence[cst.EmptyLine]) -> cst.BaseStatement:
    own: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    return statement.with_changes(leading_lines=[*lines, *own]) if lines else statement


# --- what needs no assertion ------------------------------------------------------------------------


def without_proved(code: KernelCode) -> cst.Module:
    """The module without those assertions of this file that hold whatever the shapes are."""
    indices = Indices(code)
    gone: list[cst.CSTNode] = []
    for statement in code.statements():
        test = _test_of(statement.node)
        if test is not None and statement.kind is Kind.CHECK and _holds(code, indices, test, statement):
            gone.append(statement.node)
    return _without(code, gone)


def _without(code: KernelCode, gone: Sequence[cst.CSTNode]) -> cst.Module:
    """Without these statements; what is said above and beside them stays."""
    said: dict[cst.CSTNode, Sequence[cst.EmptyLine]] = {}
    for node in gone:
        assert isinstance(node, cst.SimpleStatementLine)
        lines = [line for line in node.leading_lines if line.comment is not None]
        beside = node.trailing_whitespace.comment
        said[node] = [*lines, cst.EmptyLine(comment=beside)] if beside is not None else lines
    if not said:
        return code.module
    result = code.module.visit(_Without(said))
    assert isinstance(result, cst.Module)
    return result


def _holds(code: KernelCode, indices: Indices, test: cst.BaseExpression, at: Statement) -> bool:
    if isinstance(test, cst.BooleanOperation):
        parts = (_holds(code, indices, side, at) for side in (test.left, test.right))
        return all(parts) if isinstance(test.operator, cst.And) else any(parts)
    if decided(test) is True:
        return True
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return False
    (target,) = test.comparisons
    left, right = (indices.expanded(indices.polynomial(side, at), at) for side in (test.left, target.comparator))
    least, most = _range_of(code, indices, left - right, at)
    compared = {
        cst.Equal: least == most == 0,
        cst.LessThanEqual: most is not None and most <= 0,
        cst.GreaterThanEqual: least is not None and least >= 0,
        cst.LessThan: most is not None and most < 0,
        cst.GreaterThan: least is not None and least > 0,
    }
    return compared.get(type(target.operator), False)


def _range_of(
    code: KernelCode, indices: Indices, difference: Polynomial, at: Statement
) -> tuple[int | None, int | None]:
    """Its least and its greatest value over the iterations around; None where that does not show."""
    least = most = difference
    for loop in reversed(at.block.loops()):
        variable = loop.variable
        if loop.count is None or variable not in least.factors | most.factors:
            continue
        if code.bindings(variable) != [loop]:
            return None, None
        last = indices.expanded(indices.polynomial(loop.count, loop), loop) - number(1)
        down, rest_down = least.split(variable)
        up, rest_up = most.split(variable)
        if down.value is None or up.value is None:
            return None, None
        least = rest_down if down.value >= 0 else down * last + rest_down
        most = rest_up if up.value <= 0 else up * last + rest_up
    return least.value, most.value


class _Without(cst.CSTTransformer):
    """Takes statements out; their comments go to what follows."""

    def __init__(self, gone: Mapping[cst.CSTNode, Sequence[cst.EmptyLine]]) -> None:
        self._gone = gone

    def leave_IndentedBlock(  # libcst's name
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.BaseSuite:
        if not any(each in self._gone for each in original_node.body):
            return updated_node
        kept: list[cst.BaseStatement] = []
        comments: list[cst.EmptyLine] = []
        for before, after in zip(original_node.body, updated_node.body):
            assert isinstance(after, cst.BaseStatement)
            if before in self._gone:
                comments += self._gone[before]
            else:
                kept.append(_led_by(after, comments))
                comments = []
        body = kept or [cst.SimpleStatementLine([cst.Pass()])]
        return updated_node.with_changes(body=body, footer=[*comments, *updated_node.footer])
