"""Make `import nki` mean the simulator, in this process and only when asked to."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_ALIASES = {
    "nki": "nki_sim.nki",
    "nki_cpu_simulator": "nki_sim.nki_cpu_simulator",
    "nki_cpu_simulator.nki": "nki_sim.nki",
}
_OLD_ALIASES = {"neuronxcc": "nki_sim.neuronxcc"}
"""The namespace of NKI 0.1, of which current kernels still import the annotations; a real one goes first."""


def _target(name: str, aliases: dict[str, str]) -> str | None:
    """The simulator's module for an imported name, by the longest alias that begins it."""
    for alias in sorted(aliases, key=len, reverse=True):
        if name == alias or name.startswith(alias + "."):
            return aliases[alias] + name[len(alias) :]
    return None


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
    def __init__(self, aliases: dict[str, str]) -> None:
        self._aliases = aliases

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        real = _target(fullname, self._aliases)
        if real is None or importlib.util.find_spec(real) is None:
            if fullname.startswith("neuronxcc.nki."):
                raise ModuleNotFoundError(
                    f"{fullname} is of NKI 0.1 (Beta 1): `nki-sim migrate OLD.py -o NEW.py` rewrites a kernel",
                    name=fullname,
                )
            return None
        return ModuleSpec(fullname, _AliasLoader(real), is_package=True)


def install() -> None:
    """From now on `import nki` is the simulator. Raises if AWS's own `nki` is already imported."""
    loaded = sys.modules.get("nki")
    if loaded is not None and loaded.__name__ != "nki_sim.nki":
        raise RuntimeError("another package named nki is already imported; call nki_sim.install() before it")
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder(_ALIASES))
        sys.meta_path.append(_AliasFinder(_OLD_ALIASES))
    # now: a process that isolates itself afterwards loads no more files
    for module in ("nki_sim.nki", "nki_sim.nki.run"):
        importlib.import_module(module)


def package_of(file: str) -> str:
    """What a file's relative imports start from: the package of its folder, below a folder that is imported from."""
    folder = Path(file).resolve().parent
    for entry in map(Path.resolve, map(Path, sys.path)):
        parts = folder.relative_to(entry).parts if entry in folder.parents else ()
        if parts and all(part.isidentifier() for part in parts):
            return ".".join(parts)
    return ""
