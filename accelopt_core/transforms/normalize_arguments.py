"""Constant arguments, stated where the kernel begins and written where they are used.

    def kernel(x, stride=(1, 1)):                     def kernel(x, stride=(1, 1)):
        down, across = stride                  ->         assert stride == (1, 1), "..."
                                                          down = 1
                                                          across = 1

For another argument the kernel that follows is refused instead of wrong.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import libcst as cst

from accelopt_core.toolchain import ArgumentSpec, ConstantArgument, DtypeArgument
from accelopt_core.transforms.kernel_code import KernelCode
from accelopt_core.transforms.normalize_branches import WHY
from accelopt_core.transforms.substitution import substituted
from accelopt_core.transforms.syntax import descendants, loaded_names, parsed_expression, parsed_statement

_LONGEST = 60
"""Of a constant's text."""
_DTYPE = "dtype."


def constants_to_state(code: KernelCode, presets: Sequence[Sequence[ArgumentSpec]]) -> dict[str, str]:
    """By parameter, the text of what it is at every preset; those alone that decide something."""
    params = (*code.function.params.posonly_params, *code.function.params.params)
    found = {}
    for at, param in enumerate(params):
        texts = {_text(given[at] if at < len(given) else None, param.default) for given in presets}
        if len(texts) == 1 and (text := texts.pop()):
            found[param.name.value] = text
    asked = _asked(code)
    return {n: t for n, t in found.items() if n in asked and not code.bindings(n) and n not in code.captured}


def _text(given: ArgumentSpec | None, default: cst.BaseExpression | None) -> str:
    """Without blanks; empty for what is no constant to be stated."""
    if isinstance(given, DtypeArgument):
        return _DTYPE + given.element_type
    if given is None and default is not None:
        try:
            value = ast.literal_eval(cst.Module([]).code_for_node(default).strip())
        except (ValueError, SyntaxError):
            return ""
    elif isinstance(given, ConstantArgument):
        value = given.value
    else:
        return ""
    text = f'"{value}"' if isinstance(value, str) else repr(value).replace(" ", "")
    return text if _may_be_stated(value) and len(text) <= _LONGEST else ""


def _may_be_stated(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_may_be_stated, value))
    return value is None or isinstance(value, int) or (isinstance(value, str) and value.isidentifier())


def _asked(code: KernelCode) -> frozenset[str]:
    """Names that statements use, assertions and messages aside."""
    found: set[str] = set()
    for statement in code.statements():
        node = statement.node
        small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
        message = isinstance(small, cst.Assign) and isinstance(small.value, cst.FormattedString)
        if not isinstance(small, cst.Assert) and not message:
            found |= statement.own_uses
    return frozenset(found)


def constant_of(text: str, code: KernelCode) -> cst.BaseExpression | None:
    """None for what is none."""
    if text.startswith(_DTYPE):
        language = code.name_of_module("nki.language")
        name = text.removeprefix(_DTYPE)
        return parsed_expression(f"{language}.{name}") if language and name.isidentifier() else None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return parsed_expression(f'"{value}"' if isinstance(value, str) else repr(value)) if _may_be_stated(value) else None


def with_constants_stated(code: KernelCode, constants: Mapping[str, str]) -> cst.Module:
    """Those that cannot be said are left out."""
    values = {name: value for name, text in constants.items() if (value := constant_of(text, code)) is not None}
    values = {
        name: value
        for name, value in values.items()
        if name in code.parameters and not code.bindings(name) and name not in code.captured
    }
    in_texts = {n.value for each in _texts(code) for n in descendants(each) if isinstance(n, cst.Name)}
    values = {n: v for n, v in values.items() if not (isinstance(v, cst.SimpleString) and n in in_texts)}
    if not values:
        return code.module
    module = cst.Module([])
    alone = {name: _alone(value) for name, value in values.items()}
    folded = substituted(code.body.node, alone).visit(_Fold())
    assert isinstance(folded, cst.IndentedBlock)
    body = list(folded.body)
    first = body[0].body[0] if isinstance(body[0], cst.SimpleStatementLine) else None
    at = 1 if isinstance(first, cst.Expr) and isinstance(first.value, (cst.SimpleString, cst.ConcatenatedString)) else 0
    lines = []
    for name, value in values.items():
        same = "is" if isinstance(value, cst.Name) else "=="
        lines.append(parsed_statement(f'assert {name} {same} {module.code_for_node(value)}, "{WHY}"'))
    block = folded.with_changes(body=[*body[:at], *lines, *body[at:]])
    return code.changed({code.body.node: block})


def _texts(code: KernelCode) -> list[cst.CSTNode]:
    """With values in braces, where an older Python reads no text."""
    return [node for node in descendants(code.function) if isinstance(node, cst.FormattedString)]


def _alone(value: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(value, cst.UnaryOperation):
        return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return value


class _Fold(cst.CSTTransformer):
    """Elements for `(a, b)[0]`, and one assignment for each name in `x, y = (1, 2)`."""

    def leave_Subscript(  # libcst's name
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        value, part = updated_node.value, updated_node.slice[0].slice
        if not isinstance(value, cst.Tuple) or loaded_names(value) or len(updated_node.slice) != 1:
            return updated_node
        if not isinstance(part, cst.Index) or not isinstance(part.value, cst.Integer):
            return updated_node
        at = part.value.evaluated_value
        return value.elements[at].value if at < len(value.elements) else updated_node

    def leave_IndentedBlock(  # libcst's name
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.BaseSuite:
        return updated_node.with_changes(body=[each for line in updated_node.body for each in _split(line)])


def _split(line: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """`x, y = (1, 2)` in two lines."""
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
    if not isinstance(line, cst.SimpleStatementLine) or not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return [line]
    target, value = small.targets[0].target, small.value
    if not isinstance(target, cst.Tuple) or not isinstance(value, cst.Tuple) or len(target.elements) < 2:
        return [line]
    names, parts = [each.value for each in target.elements], [each.value for each in value.elements]
    named = [name for name in names if isinstance(name, cst.Name)]
    starred = any(isinstance(node, cst.StarredElement) for node in descendants(small))
    if starred or loaded_names(value) or not len(named) == len(names) == len(parts):
        return [line]
    made = [cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(name)], part)]) for name, part in zip(named, parts)]
    made[0] = made[0].with_changes(leading_lines=line.leading_lines)
    made[-1] = made[-1].with_changes(trailing_whitespace=line.trailing_whitespace)
    return made
