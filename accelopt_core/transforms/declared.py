"""What an allocation declares, however it is written: `x.shape` and `x.dtype` are what x was declared with."""

from __future__ import annotations

import libcst as cst

from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement


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
        value = code.argument(allocation, attribute, position)
        if value is None:
            return ""
        named = code.qualified(value)
        if named:
            return named
        if isinstance(value, cst.Tuple):
            return ", ".join(_size(code, element.value) for element in value.elements)
        text = code.module.code_for_node(value)
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


def _size(code: KernelCode, size: cst.BaseExpression) -> str:
    if isinstance(size, cst.Call) and code.qualified(size.func) == "nki.language.par_dim" and len(size.args) == 1:
        size = size.args[0].value
    return code.module.code_for_node(size.with_changes(lpar=(), rpar=())).replace(" ", "")
