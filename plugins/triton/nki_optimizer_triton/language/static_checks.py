"""What a Triton kernel's text gives away: the rules of Python around it, and Triton's own.

A kernel's file has functions under `@triton.jit`, which a GPU runs, and one plain function that allocates, views and
launches. The second may not compute: what is timed and verified are the launches.
"""

from __future__ import annotations

import ast

from accelopt_core.language import Finding
from accelopt_core.languages.python_file import PythonFile
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

_IMPORTABLE = USUAL_IMPORTS | {"torch", "triton"}


def unusual_import(source: PythonFile) -> Found:
    yield from unusual_imports(source, _IMPORTABLE)


_HOST_ONLY = {
    "triton.testing": "measures",
    "triton.runtime": "reaches into Triton's runtime",
    "triton.compiler": "compiles",
    "triton.backends": "reaches into Triton's compiler",
    "triton.tools": "reaches into Triton's tools",
    "triton.knobs": "changes how Triton compiles",
    "torch.cuda.Event": "is a clock",
    "torch.cuda.synchronize": "waits for the device",
    "torch.cuda.Stream": "changes where launches go",
    "torch.cuda.CUDAGraph": "records launches",
    "torch.cuda.graph": "records launches",
    "torch.cuda.memory": "reaches into the allocator",
    "torch.utils": "reaches beyond the kernel",
    "torch.ops": "computes outside the kernels that are timed",
    "torch.compile": "compiles",
    "torch.library": "registers operators",
    "torch.jit": "compiles",
}


def host_only(source: PythonFile) -> Found:
    """Parts of torch and Triton that belong to whoever measures or compiles, and not to a kernel."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            dotted = source.dotted(node)
            if dotted in _HOST_ONLY:
                yield node, f"{dotted} {_HOST_ONLY[dotted]}: a kernel allocates, views and launches"
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                for dotted in (node.module or "", f"{node.module}.{alias.name}"):
                    if dotted in _HOST_ONLY:
                        yield node, f"{dotted} {_HOST_ONLY[dotted]}: a kernel allocates, views and launches"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in _HOST_ONLY:
                    yield node, f"{alias.name} {_HOST_ONLY[alias.name]}: a kernel allocates, views and launches"


_NOT_COMPUTED = {
    "inline_asm_elementwise": "runs instructions that nobody reads",
    "extern_elementwise": "calls code that nobody reads",
    "device_print": "prints",
    "static_print": "prints",
}


def unread_code(source: PythonFile) -> Found:
    """What in a kernel is neither computed by Triton's own operations nor visible in its IR."""
    for node in ast.walk(source.tree):
        name = source.dotted(node) if isinstance(node, ast.Attribute) else ""
        if not name.startswith("triton.language."):
            continue
        last = name.rpartition(".")[2]
        if last in _NOT_COMPUTED:
            yield node, f"tl.{last} {_NOT_COMPUTED[last]}"
        elif name.startswith("triton.language.extra.") and "libdevice" not in name and last != "cuda":
            yield node, f"{name} reads the machine, not the inputs"


def behind_a_module(source: PythonFile) -> Found:
    yield from behind_modules(source, ("numpy.", "math.", "torch.", "triton.", "functools."))


_OWN = (unusual_import, host_only, unread_code, behind_a_module)

RULES = sorted([*PYTHON_RULES, *map(named, _OWN)])
"""Names of all that `forbidden` looks for."""


def forbidden(source: str, neighbours: frozenset[str] = frozenset()) -> list[Finding]:
    """As `Language.forbidden`."""
    try:
        file = PythonFile(without_main(source), neighbours)
        of_python = ((name, *found) for name, check in PYTHON_RULES.items() for found in check(file))
        own = ((named(check), *found) for check in _OWN for found in check(file))
        return in_order(found for findings in (of_python, own) for found in findings)
    except UNREADABLE:
        return []
