"""What a Triton kernel computes with: the operations of triton.language that it names."""

from __future__ import annotations

import ast

from accelopt_core.candidate import parsed
from accelopt_core.languages.python_file import PythonFile
from accelopt_core.languages.python_rules import UNREADABLE

_LANGUAGE = "triton.language."
_NOT_OPERATIONS = frozenset({
    "constexpr", "program_id", "num_programs", "arange", "static_range", "range", "multiple_of", "max_contiguous",
    "static_assert", "assume",
})  # fmt: skip
"""What nearly every kernel has, or what computes nothing."""


def kernel_operators(source: str) -> tuple[str, ...]:
    """Sorted, e.g. `("dot", "exp", "load", "store", "sum")`. Empty for a source that does not parse."""
    try:
        file = PythonFile(parsed(source))
    except UNREADABLE:
        return ()
    called = [file.dotted(node.func) for node in ast.walk(file.tree) if isinstance(node, ast.Call)]
    names = {name.rpartition(".")[2] for name in called if name.startswith(_LANGUAGE)}
    return tuple(sorted(names - _NOT_OPERATIONS))
