"""The optimizer as something to install: the commands `nki-optimizer` and `nki-sim`, and `import nki_optimizer`.

In a wheel the program lies in `tree/` beside this file, laid out as in a clone, so that of its names only this one and
`nki_sim` reach site-packages. In a clone, and installed from one by `pip install -e`, the clone is the tree.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

_INSTALLED = Path(__file__).resolve().parent / "tree"
TREE = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1]
"""The folder that holds `orchestrator.py`, `infra/`, `prompts/` and the rest."""

_NEEDED = ("accelopt_core", "infra", "ka_extensions")
"""Of the tree, by names that a caller's own files may have."""

_OFFERED = {
    "optimize": "infra.commands.optimize:optimize",
    "evaluate": "infra.commands.evaluate:evaluate",
    "Outcome": "infra.commands.optimize:RunOutcome",
    "NKIKernel": "infra.nki_kernel:NKIKernel",
    "events": "accelopt_core.loop.events",
    "Ending": "accelopt_core.loop.events:Ending",
    "evaluation": "accelopt_core.evaluation",
    "Measured": "accelopt_core.evaluation:Measured",
    "BaselineRejected": "accelopt_core.loop.rounds:BaselineRejected",
    "ModelError": "accelopt_core.ports:ModelError",
    "TargetError": "accelopt_core.ports:TargetError",
    "TaskFault": "accelopt_core.ports:TaskFault",
    "JournalError": "infra.journal:JournalError",
    "SettingsError": "infra.settings_reader:SettingsError",
    "TaskInvalid": "infra.tasks.reference_reader:TaskInvalid",
    "TaskNotFound": "infra.tasks.seed_index:TaskNotFound",
}
"""Names of this package, loaded when they are first asked for: `module` or `module:name` (docs/library.md)."""

if TYPE_CHECKING:  # in a clone; installed, the tree is no package that a type checker finds
    from accelopt_core import evaluation
    from accelopt_core.evaluation import Measured
    from accelopt_core.loop import events
    from accelopt_core.loop.events import Ending
    from accelopt_core.loop.rounds import BaselineRejected
    from accelopt_core.ports import ModelError, TargetError, TaskFault
    from infra.commands.evaluate import evaluate
    from infra.commands.optimize import RunOutcome as Outcome
    from infra.commands.optimize import optimize
    from infra.journal import JournalError
    from infra.nki_kernel import NKIKernel
    from infra.settings_reader import SettingsError
    from infra.tasks.reference_reader import TaskInvalid
    from infra.tasks.seed_index import TaskNotFound

__all__ = [
    "TREE",
    "BaselineRejected",
    "Ending",
    "JournalError",
    "Measured",
    "ModelError",
    "NKIKernel",
    "Outcome",
    "SettingsError",
    "TargetError",
    "TaskFault",
    "TaskInvalid",
    "TaskNotFound",
    "evaluate",
    "evaluation",
    "events",
    "optimize",
]


def __getattr__(name: str) -> Any:
    """Raises ImportError where a package of the caller's own stands under one of our names."""
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if str(TREE) not in sys.path:
        sys.path.append(str(TREE))  # behind the caller's own modules, which keep their names
    for package in _NEEDED:
        found = _found(package)
        if not found.is_relative_to(TREE):
            raise ImportError(f"nki_optimizer.{name} needs its own package {package!r}, and here {found} has that name")
    module, _, attribute = _OFFERED[name].partition(":")
    with _own_config():
        loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def _found(name: str) -> Path:
    """What a caller's `import name` gives."""
    loaded = sys.modules.get(name)
    spec = find_spec(name) if loaded is None else None
    where = getattr(loaded, "__file__", None) if loaded is not None else (spec.origin if spec else None)
    return Path(where or "").resolve()


@contextmanager
def _own_config() -> Iterator[None]:
    """`import config` is the tree's own meanwhile; a caller's file of that common name is theirs again afterwards."""
    if _found("config").is_relative_to(TREE):
        yield
        return
    with _LOADING:
        theirs = sys.modules.get("config")
        own = sys.modules.get(_OWN_CONFIG)
        spec = spec_from_file_location(_OWN_CONFIG, TREE / "config.py") if own is None else None
        if spec is not None and spec.loader is not None:
            own = sys.modules[_OWN_CONFIG] = module_from_spec(spec)
            sys.modules["config"] = own
            spec.loader.exec_module(own)
        assert own is not None
        sys.modules["config"] = own
        try:
            yield
        finally:
            del sys.modules["config"]
            if theirs is not None:
                sys.modules["config"] = theirs


_OWN_CONFIG = "nki_optimizer._config"
"""What `config.py` of the tree is called where a caller has another: types find their module by its name."""
_LOADING = threading.RLock()


def __dir__() -> list[str]:
    return sorted({*globals(), *_OFFERED})
