"""Which NKI a file is written in: 0.1 (Beta 1), 0.2 to 0.6, or 0.7."""

from __future__ import annotations

import ast
from enum import Enum

from nki_sim.migrate.calls import Calls


class Dialect(str, Enum):
    BETA1 = "0.1 (Beta 1)"
    PARSER = "0.2 to 0.6"
    TRACER = "0.7"
    UNKNOWN = "no NKI"


_OLD_NAMES = {"nl.arange", "nl.mgrid", "nl.loop_reduce", "nl.static_cast", "nl.spmd_dim"}
_DST_FIRST = {
    "activation",
    "nc_matmul",
    "nc_transpose",
    "tensor_copy",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_tensor",
}
_NEW_NAMES = {"tiles", "blocks", "alloc_tiles", "alloc_blocks", "scalar_load", "scalar_store", "NkiScalar"}


def dialect_of(source: str) -> Dialect:
    """The oldest NKI that the file's calls belong to. Raises SyntaxError."""
    tree = ast.parse(source)
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [f"{node.module}.{alias.name}" for alias in node.names]
            if isinstance(node, ast.ImportFrom) and node.module
            else []
        )
    }
    # kernels of 0.2 and later may still take their annotations from the old namespace
    if any(n.startswith("neuronxcc") and not n.startswith("neuronxcc.nki.typing") for n in imported):
        return Dialect.BETA1
    names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    bases = {n.value.id for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    uses = bool({"nl", "nisa", "nki"} & bases) or any(n == "nki" or n.startswith("nki.") for n in imported)
    if not uses:
        return Dialect.UNKNOWN
    calls = Calls(tree)
    dotted = {calls.name(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    if dotted & _OLD_NAMES or _returns_tiles(tree):
        return Dialect.BETA1
    return Dialect.TRACER if names & _NEW_NAMES else Dialect.PARSER


def _returns_tiles(tree: ast.Module) -> bool:
    """Whether an instruction's result is used, as before 0.2."""
    names = Calls(tree)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and id(node) not in statements:
            module, _, name = names.name(node.func).rpartition(".")
            if module == "nisa" and name in _DST_FIRST:
                return not any(keyword.arg == "dst" for keyword in node.keywords)
    return False
