"""Other Pythons of this machine, for tests that need one: those that run, which a pyenv shim need not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.processes import PATIENCE_S


def interpreters(version: str, home: Path | None = None) -> list[Path]:
    """Of `3.9`, say: on the PATH and among pyenv's, which lie below `home`; none where none runs.

    A shim stands on the PATH for every version that pyenv has anywhere, and fails where that is not chosen.
    """
    found = [Path(path) for path in (shutil.which(f"python{version}"),) if path]
    found += sorted((home or Path.home()).glob(f".pyenv/versions/{version}.*/bin/python3"))
    return [path for path in found if _runs(path, version)]


def _runs(python: Path, version: str) -> bool:
    try:
        said = subprocess.run(
            [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.returncode == 0 and said.stdout.strip() == version
