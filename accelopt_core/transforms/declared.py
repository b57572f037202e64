"""What an allocation declares, however it is written: `x.shape` and `x.dtype` are what x was declared with."""

from __future__ import annotations

import libcst as cst

from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.syntax import loaded_names


def declared_shape(code: KernelCode, allocation: Statement) -> str:
    """As text, the same for the same sizes; empty when it does not show."""
    return _declared(code, allocation, "shape", 0)


def declared_dtype(code: KernelCode, allocation: Statement) -> str:
    """`nki.language.float32`, or `x.dtype` for an argument x; empty when it does not show."""
    return _declared(code, allocation, "dtype", 1)


def _declared(code: KernelCode, allocation: Statement, attribute: str, position: int) -> str:
    seen: set[Statement] = set()
    while allocation not in seen:
        seen.add(allocation)
        value = _followed(code, code.argument(allocation, attribute, position))
        if value is None or any(len(code.bindings(name)) > 1 for name in loaded_names(value)):
            return ""
        named = code.qualified(value)
        if named:
            return named
        if isinstance(value, cst.Tuple):
            return ", ".join(_size(code, element.value) for element in value.elements)
        text = code.module.code_for_node(value)
        text = asserted_dtypes(code).get(text, text)
        if (
            not isinstance(value, cst.Attribute)
            or value.attr.value != attribute
            or not isinstance(value.value, cst.Name)
        ):
            return text
        made = code.bindings(value.value.value)
        if len(made) != 1 or made[0].kind is not Kind.ALLOCATE:
            return text
        allocation = made[0]
    return ""


def asserted_dtypes(code: KernelCode) -> dict[str, str]:
    """`x.dtype` to `nki.language.float32`, of every `assert x.dtype == nl.float32` in the function's own block."""
    found = {}
    for statement in code.body.statements:
        node = statement.node
        test = (
            node.body[0].test
            if isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.Assert)
            else None
        )
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            (comparison,) = test.comparisons
            named = code.qualified(comparison.comparator)
            left = test.left
            if (
                isinstance(comparison.operator, cst.Equal)
                and named.startswith("nki.language.")
                and isinstance(left, cst.Attribute)
                and isinstance(left.value, cst.Name)
                and left.attr.value == "dtype"
                and left.value.value in code.parameters
                and not code.bindings(left.value.value)
            ):
                found[f"{left.value.value}.dtype"] = named
    return found


def _followed(code: KernelCode, value: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """What a name was defined as, where it is defined once."""
    for _ in range(8):
        if not isinstance(value, cst.Name):
            break
        bindings = code.bindings(value.value)
        node = bindings[0].node if len(bindings) == 1 and bindings[0].kind is Kind.DEFINE else None
        small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
        if not isinstance(small, cst.Assign) or not isinstance(small.targets[0].target, cst.Name):
            break
        value = small.value
    return value


def _size(code: KernelCode, size: cst.BaseExpression) -> str:
    if isinstance(size, cst.Call) and code.qualified(size.func) == "nki.language.par_dim" and len(size.args) == 1:
        size = size.args[0].value
    return code.module.code_for_node(size.with_changes(lpar=(), rpar=())).replace(" ", "")
