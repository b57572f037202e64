"""The optimizer as something to install: the commands `nki-optimizer` and `nki-sim`, and `import nki_optimizer`.

In a wheel the program lies in `tree/` beside this file, laid out as in a clone, so that of its names only this one and
`nki_sim` reach site-packages. In a clone, and installed from one by `pip install -e`, the clone is the tree.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_INSTALLED = Path(__file__).resolve().parent / "tree"
TREE = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1]
"""The folder that holds `orchestrator.py`, `infra/`, `prompts/` and the rest."""

_OFFERED = {"NKIKernel": "infra.nki_kernel"}
"""Names of this package, loaded when they are first asked for, and where they are from."""

__all__ = ["TREE", "NKIKernel"]


def __getattr__(name: str) -> Any:
    """Raises ImportError where a package of the caller's own stands under one of our names."""
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if str(TREE) not in sys.path:
        sys.path.append(str(TREE))  # behind the caller's own modules, which keep their names
    package = _OFFERED[name].partition(".")[0]
    found = import_module(package).__file__ or ""
    if not Path(found).resolve().is_relative_to(TREE):
        raise ImportError(f"nki_optimizer.{name} needs its own package {package!r}, and here {found} has that name")
    return getattr(import_module(_OFFERED[name]), name)
