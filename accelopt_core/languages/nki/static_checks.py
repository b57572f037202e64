"""What an NKI kernel's text gives away: the rules of Python around it, and NKI's own."""

from __future__ import annotations

import ast

from accelopt_core.language import Finding
from accelopt_core.languages.python_rules import (
    PYTHON_RULES,
    UNREADABLE,
    USUAL_IMPORTS,
    Found,
    behind_modules,
    in_order,
    named,
    unusual_imports,
    without_main,
)
from nki_sim.lint import LAST_PARSED, LATEST, check_source
from nki_sim.lint.kernel_source import KernelSource

_IMPORTABLE = USUAL_IMPORTS | {
    "nki", "neuronxcc", "torch", "jax", "nkilib", "neuronx_distributed", "nkipy", "torch_xla", "torch_neuronx", "scipy",
}  # fmt: skip
"""What public kernels import; frameworks among them, which a file may import for a caller of its own."""


def unusual_import(source: KernelSource) -> Found:
    yield from unusual_imports(source, _IMPORTABLE)


def simulator_internals(source: KernelSource) -> Found:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            dotted = source.dotted(node)
            if dotted.startswith("nki.") and any(part.startswith("_") for part in dotted.split(".")):
                yield node, f"{dotted} is private"
    yield from behind_modules(source, ("numpy.", "math.", "nki.", "functools."))


def host_computation(source: KernelSource) -> Found:
    """Numbers computed by NumPy inside a kernel are constants of one compilation, or work that nobody times."""
    for node in source.in_kernels():
        if isinstance(node, ast.Call):
            name = source.dotted(node.func)
            head, _, function = name.partition(".")
            if head == "numpy" and function.partition(".")[0] not in _HOST_NUMPY:
                yield node, f"{name}() computes on the host, not on the device"


_HOST_NUMPY = {
    "float32", "float16", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool_",
    "dtype", "prod", "ceil", "floor", "sqrt", "log2", "log", "exp", "sum", "max", "min", "maximum", "minimum", "pi",
    "finfo", "iinfo", "inf", "array", "arange", "zeros", "ones", "full", "eye", "identity", "tril", "triu", "int_",
    "lcm", "gcd", "cumsum", "power", "linspace", "tile", "repeat", "reshape", "asarray", "empty", "ndarray", "abs",
    "round", "argmax", "concatenate", "stack",
}  # fmt: skip
"""Shape arithmetic, and small tables such as masks that a kernel brings along as constants."""

_OWN = (unusual_import, simulator_internals, host_computation)

RULES = sorted([*PYTHON_RULES, *map(named, _OWN)])
"""Names of all that `forbidden` looks for."""


def forbidden(source: str, neighbours: frozenset[str] = frozenset()) -> list[Finding]:
    """As `Language.forbidden`."""
    try:
        kernel = KernelSource(without_main(source), neighbours)
        of_python = ((name, *found) for name, check in PYTHON_RULES.items() for found in check(kernel))
        own = ((named(check), *found) for check in _OWN for found in check(kernel))
        return in_order(found for findings in (of_python, own) for found in findings)
    except UNREADABLE:
        return []


def dialect(source: str) -> list[Finding]:
    """What the newest NKI compiler rejects, or the last that read a part of Python, although the simulator may run it.

    For a note: which of them the user has is not known here.
    """
    try:
        traced, read = ([f for f in check_source(source, v) if f.severity == "error"] for v in (LATEST, LAST_PARSED))
    except (RecursionError, MemoryError):
        return []
    notes = []
    for found in dict.fromkeys([*traced, *read]):
        where = (
            f", up to NKI {LAST_PARSED}" if found not in traced else f", from NKI {LATEST}" if found not in read else ""
        )
        notes.append(Finding(found.rule, found.line, f"{found.message}; {found.hint}{where}"))
    return notes
