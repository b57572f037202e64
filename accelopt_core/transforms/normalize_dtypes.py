"""What the arguments' dtypes are, stated where the kernel begins: `x.dtype` then says what a tile is made of.

    def kernel(x):                                    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype)    ->         assert x.dtype == nl.float32
                                                          tile = nl.ndarray(x.shape, x.dtype)

For another dtype the kernel that follows is refused instead of wrong: a transform may rest on the assertion.
"""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from accelopt_core.transforms.declared import asserted_dtypes
from accelopt_core.transforms.kernel_code import KernelCode
from accelopt_core.transforms.operand_access import base_name
from accelopt_core.transforms.syntax import descendants, parsed_statement


def dtypes_to_state(code: KernelCode, dtypes: tuple[str, ...]) -> dict[str, str]:
    """By parameter, of those whose dtype the kernel asks for without saying it."""
    if not code.name_of_module("nki.language"):
        return {}
    params = (*code.function.params.posonly_params, *code.function.params.params)
    known = {param.name.value: dtype for param, dtype in zip(params, dtypes) if dtype}
    asked = {
        node.value.value
        for node in descendants(code.function.body)
        if isinstance(node, cst.Attribute) and node.attr.value == "dtype" and isinstance(node.value, cst.Name)
    }
    loaded = (
        base_name(node.args[0].value)
        for node in descendants(code.function.body)
        if isinstance(node, cst.Call) and node.args and code.qualified(node.func) == "nki.language.load"
    )
    asked.update(loaded)  # in normal form it is a tile of that dtype
    stated = asserted_dtypes(code)
    rebound = {name for name in known if code.bindings(name)}
    return {name: dtype for name, dtype in known.items() if name in asked - rebound and f"{name}.dtype" not in stated}


def with_dtypes_stated(code: KernelCode, dtypes: Mapping[str, str]) -> cst.Module:
    if not dtypes:
        return code.module
    language = code.name_of_module("nki.language")
    body = code.body.node.body
    first = body[0].body[0] if isinstance(body[0], cst.SimpleStatementLine) else None
    at = 1 if isinstance(first, cst.Expr) and isinstance(first.value, (cst.SimpleString, cst.ConcatenatedString)) else 0
    lines = [parsed_statement(f"assert {name}.dtype == {language}.{dtype}") for name, dtype in dtypes.items()]
    return code.changed({code.body.node: code.body.node.with_changes(body=[*body[:at], *lines, *body[at:]])})
