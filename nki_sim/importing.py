"""Make `import nki` mean the simulator, in this process and only when asked to."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_ALIASES = {"nki": "nki_sim.nki", "nki_cpu_simulator": "nki_sim.nki_cpu_simulator"}


class _AliasLoader(Loader):
    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._target)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The target has been executed under its own name; it only takes its own spec back."""
        module.__spec__ = self._own_spec


class _AliasFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        if root not in _ALIASES:
            return None
        real = _ALIASES[root] + ("." + rest if rest else "")
        if importlib.util.find_spec(real) is None:
            return None
        return ModuleSpec(fullname, _AliasLoader(real), is_package=True)


def install() -> None:
    """From now on `import nki` is the simulator. Raises if AWS's own `nki` is already imported."""
    loaded = sys.modules.get("nki")
    if loaded is not None and loaded.__name__ != "nki_sim.nki":
        raise RuntimeError("another package named nki is already imported; call nki_sim.install() before it")
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder())
