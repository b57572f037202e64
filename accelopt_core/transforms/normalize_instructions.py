"""One spelling for every instruction and every allocation.

    nisa.memset(a, 0.0, engine=nisa.vector_engine)      ->    nisa.memset(dst=a, value=0.0, engine=nisa.engine.vector)
    nisa.tensor_reduce(dst=s, op=nl.add, data=t[:, :],  ->    nisa.tensor_reduce(dst=s, op=nl.add, data=t, axis=1)
                       axis=(1,), keepdims=True)
    nl.ndarray((nl.par_dim(P), N), dtype=nl.float32)    ->    nl.ndarray((P, N), dtype=nl.float32)

Operands by name, arguments that say what holds anyway left out, a whole tile by its bare name.
"""

from __future__ import annotations

import libcst as cst

from accelopt_core.transforms.isa_effects import PARAMETERS
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.syntax import descendants, parsed_expression, replace_nodes

_ENGINES = {f"nki.isa.{name}_engine": name for name in ("vector", "scalar", "gpsimd", "tensor")}
_SAYS_NOTHING = {"accumulate": "None", "negate": "False", "reverse0": "False", "reverse1": "False", "bias": "None"}
"""Values that are what these parameters are without them."""


def with_instructions_spelled_alike(code: KernelCode) -> cst.Module:
    """The module; the very one of `code` when nothing changes."""
    changes: dict[cst.CSTNode, cst.CSTNode] = {}
    for statement in code.statements():
        if statement.kind is Kind.INSTRUCTION and statement.call is not None:
            made = _instruction(code, statement, statement.call)
            if made is not statement.call:
                changes[statement.call] = made
        elif statement.kind is Kind.ALLOCATE and statement.call is not None:
            made = _allocation(code, statement.call)
            if made is not statement.call:
                changes[statement.call] = made
    return code.changed(changes) if changes else code.module


def _instruction(code: KernelCode, statement: Statement, call: cst.Call) -> cst.Call:
    parameters = PARAMETERS.get(statement.operation, ())
    args: list[cst.Arg] = []
    for position, arg in enumerate(call.args):
        if arg.keyword is None and position >= len(parameters):
            return call
        keyword = arg.keyword.value if arg.keyword is not None else parameters[position]
        value = _operand(code, arg.value)
        engine = _ENGINES.get(code.qualified(value)) if keyword == "engine" else None
        if engine is not None and isinstance(call.func, cst.Attribute):
            value = parsed_expression(f"{code.module.code_for_node(call.func.value)}.engine.{engine}")
        if keyword == "axis":
            value = _axis(value)
        if _is_superfluous(code, statement, keyword, value):
            continue
        if value is arg.value and arg.keyword is not None:
            args.append(arg)
        elif arg.keyword is not None:
            args.append(arg.with_changes(value=value))
        else:
            none = cst.SimpleWhitespace("")
            args.append(arg.with_changes(value=value, keyword=cst.Name(keyword), equal=cst.AssignEqual(none, none)))
    if len(args) == len(call.args) and all(mine is other for mine, other in zip(args, call.args)):
        return call
    args[-1] = args[-1].with_changes(comma=_last_comma(args[-1], call.args[-1]))
    return call.with_changes(args=args)


def _last_comma(last: cst.Arg, before: cst.Arg) -> cst.Comma | cst.MaybeSentinel:
    """Of the last argument that is left, where another one was the last: what is said beside it stays."""
    comma = last.comma
    space = comma.whitespace_after if isinstance(comma, cst.Comma) else None
    if not isinstance(comma, cst.Comma) or not isinstance(space, cst.ParenthesizedWhitespace):
        return cst.MaybeSentinel.DEFAULT
    if space.first_line.comment is None and not any(line.comment for line in space.empty_lines):
        return cst.MaybeSentinel.DEFAULT
    ending = before.comma.whitespace_after if isinstance(before.comma, cst.Comma) else before.whitespace_after_arg
    if isinstance(ending, cst.ParenthesizedWhitespace):
        space = space.with_changes(indent=ending.indent, last_line=ending.last_line)
    return comma.with_changes(whitespace_after=space)


def _is_superfluous(code: KernelCode, statement: Statement, keyword: str, value: cst.BaseExpression) -> bool:
    if keyword == "name":
        return True
    if keyword == "keepdims":
        return statement.operation == "tensor_reduce"  # dst has the shape
    if keyword == "dtype" and statement.operation == "tensor_copy":
        dst = code.argument(statement, "dst", 0)
        declared = {
            code.qualified(d) for a in _allocations(code, dst) if (d := code.argument(a, "dtype", 1)) is not None
        }
        return declared == {code.qualified(value)} != {""}
    text = _SAYS_NOTHING.get(keyword)
    return text is not None and isinstance(value, cst.Name) and value.value == text


def _allocations(code: KernelCode, expression: cst.BaseExpression | None) -> list[Statement]:
    return [] if expression is None else code.allocations_of(expression)


def _axis(value: cst.BaseExpression) -> cst.BaseExpression:
    """`1` for `(1,)` and `[1]`."""
    if isinstance(value, (cst.Tuple, cst.List)) and len(value.elements) == 1:
        return value.elements[0].value
    return value


def _operand(code: KernelCode, value: cst.BaseExpression) -> cst.BaseExpression:
    """A tile by its bare name, where all of it is cut out."""
    if not isinstance(value, cst.Subscript) or not isinstance(value.value, cst.Name):
        return value
    bindings = code.bindings(value.value.value)
    if len(bindings) != 1 or bindings[0].kind is not Kind.ALLOCATE:
        return value
    shape = code.argument(bindings[0], "shape", 0)
    if not isinstance(shape, cst.Tuple) or len(shape.elements) != len(value.slice):
        return value
    for element, part in zip(shape.elements, value.slice):
        if not isinstance(part.slice, cst.Slice) or part.slice.step is not None:
            return value
        lower, upper = part.slice.lower, part.slice.upper
        if lower is not None and not (isinstance(lower, cst.Integer) and lower.evaluated_value == 0):
            return value
        if upper is not None and not upper.deep_equals(_without_par_dim(code, element.value)):
            return value
        if any(len(code.bindings(n.value)) > 1 for n in descendants(element) if isinstance(n, cst.Name)):
            return value
    return value.value


def _without_par_dim(code: KernelCode, size: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(size, cst.Call) and code.qualified(size.func) == "nki.language.par_dim" and len(size.args) == 1:
        return size.args[0].value
    return size


def _allocation(code: KernelCode, call: cst.Call) -> cst.Call:
    changes: dict[cst.CSTNode, cst.CSTNode] = {}
    for node in descendants(call):
        if isinstance(node, cst.Call) and _without_par_dim(code, node) is not node:
            changes[node] = node.args[0].value
    if not changes:
        return call
    made = replace_nodes(call, changes)
    assert isinstance(made, cst.Call)
    return made
