"""Reading the old kernel's calls: which function of the old API, and which argument is which."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import numpy as np

from nki_sim.beta1 import isa, language
from nki_sim.migrate.operands import NeedsPerson

_PREFIXES = {
    "neuronxcc.nki.language": "nl",
    "neuronxcc.nki.isa": "nisa",
    "neuronxcc.nki.isa.constants": "nisa",
    "neuronxcc.nki": "nki",
    "neuronxcc.nki.typing": "nt",
    "neuronxcc.nki.compiler": "nki.compiler",
    "numpy": "np",
    "nki": "nki",
    "nki.language": "nl",
    "nki.isa": "nisa",
}
ALLOCATIONS = ("nl.ndarray", "nl.zeros", "nl.ones", "nl.full", "nl.zeros_like", "nl.empty_like")
RANGES = ("nl.affine_range", "nl.sequential_range", "nl.static_range")
_PROGRAMS = ("nl.program_id", "nl.num_programs", "nl.program_ndim", "nisa.get_nc_version")
KEPT = (*RANGES, *_PROGRAMS, "nl.ds", "nl.par_dim")
"""Calls without a tile, which are not rewritten as instructions."""


class Calls:
    """The names by which a module calls NKI, wherever it imports them."""

    def __init__(self, tree: ast.Module) -> None:
        self._aliases = {"nl": "nl", "nisa": "nisa", "nki": "nki", "np": "np", "par_dim": "nl.par_dim"}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname or "." not in alias.name:
                        self._aliases[alias.asname or alias.name] = _PREFIXES.get(alias.name, alias.name)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    base = _PREFIXES.get(node.module, node.module)
                    self._aliases[alias.asname or alias.name] = _PREFIXES.get(full, f"{base}.{alias.name}")

    def name(self, node: ast.expr) -> str:
        """`nl.load` for whatever the module writes for it; empty for what has no dotted name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        root = self._aliases.get(node.id, node.id)
        name = ".".join([root, *reversed(parts)])
        return name.replace("nki.isa.", "nisa.").replace("nisa.constants.", "nisa.").replace("nki.language.", "nl.")

    def called(self, node: ast.expr) -> str:
        return self.name(node.func) if isinstance(node, ast.Call) else ""


def arguments(name: str, node: ast.Call) -> dict[str, ast.expr]:
    """The call's arguments by the old function's parameter names."""
    module, _, short = name.partition(".")
    if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
        raise NeedsPerson("call", f"{name} with * or ** arguments")
    if module == "nl" and short in language.BINARY:
        names = ["x", "y"]
    elif module == "nl" and short in language.UNARY:
        names = ["x"]
    elif module == "nl" and short in (*language.REDUCTIONS, "mean"):
        names = ["x", "axis"]
    else:
        function: Any = getattr(isa if module == "nisa" else language, short)
        names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    given = dict(zip(names, node.args))
    given.update({keyword.arg: keyword.value for keyword in node.keywords if keyword.arg})
    return {key: value for key, value in given.items() if not _is_none(value)}


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def constant(node: ast.expr | None, default: Any = None) -> Any:
    """A literal argument; NeedsPerson where it is computed."""
    if node is None:
        return default
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise NeedsPerson("argument", f"{ast.unparse(node)} is not a literal") from None


def number(node: ast.expr) -> str | None:
    """`np.float32(1)` and `np.dtype(np.uint16).type(0)` are the number in them."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        name = ast.unparse(node.func)
        if name.startswith("np.dtype(") and name.endswith(").type") or name in ("np.float32", "np.int32", "np.float16"):
            text = ast.unparse(node.args[0])
            value = constant(node.args[0])
            limit = float(np.finfo(np.float32).max)
            return text if abs(value) <= limit else repr(float(np.copysign(limit, value)))  # rounded up in print
    return None
