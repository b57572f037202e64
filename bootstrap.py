"""Makes a script run where its dependencies are: here, or in this project's .venv.

Standard library only, and no syntax newer than Python 3.8, so that an old interpreter can read it and say what to do.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parent
OLDEST = (3, 10)
INTERRUPTED = 5
VENV_VARIABLE = "NKI_OPTIMIZER_VENV"
"""Names a folder to use instead of .venv, e.g. where the checkout is read-only; run.sh knows it too."""
READY = ".ready"
"""In that folder: run.sh's mark of a finished set-up."""
_ENTERED = "NKI_OPTIMIZER_ENTERED_VENV"
"""Set for the moment between leaving one interpreter and starting the other; a second try would be a loop."""


def enter(script: str, extra: str = "", create: bool = False, module: str = "") -> None:
    """Returns if this interpreter can run `script`; else starts it again in .venv, or exits 2 with one line.

    `extra`: an optional dependency group that is needed too. `create`: build .venv where it is missing. `module`: the
    name that `script` was started by, as `python -m NAME`.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no µ must not end a run
    sys.excepthook = _end_quietly_when_interrupted
    entered = os.environ.pop(_ENTERED, "") != ""
    lacking = ", ".join(missing(extra))
    if not lacking:
        return
    venv = Path(os.environ.get(VENV_VARIABLE) or ROOT / ".venv")
    setup = ROOT / "run.sh"
    if entered:
        with contextlib.suppress(OSError):  # a read-only folder has its mark for good
            (venv / READY).unlink()
        _give_up(f"{venv} lacks {lacking}: run {setup}, it installs what is missing")
    if create:
        status = subprocess.call(["/bin/sh", str(setup), "--setup"])
        if status != 0:
            sys.exit(status)
    python = venv / "bin" / "python"
    if not os.access(str(python), os.X_OK):
        version = ".".join(str(part) for part in sys.version_info[:2])
        _give_up(f"Python {version} ({sys.executable}) lacks {lacking}: run {setup} once, it sets everything up")
    os.environ[_ENTERED] = "1"
    os.environ.pop("__PYVENV_LAUNCHER__", None)  # macOS: it would make the new interpreter think it is the old one
    sys.stdout.flush()
    sys.stderr.flush()
    what = ["-m", module] if module else [str(Path(script).resolve())]
    os.execv(str(python), [str(python), *what, *sys.argv[1:]])


def missing(extra: str = "") -> list[str]:
    """What this interpreter lacks of what pyproject.toml asks for, e.g. `numpy>=1.26`."""
    if sys.version_info[:2] < OLDEST:
        return ["Python {}.{} or newer".format(*OLDEST)]
    from importlib import metadata  # Python 3.7 has none, and is sent away by the line above

    lacking = []
    for name, lowest in requirements(extra):
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            lacking.append(name)
            continue
        if _numbers(found) < _numbers(lowest):
            lacking.append(f"{name}>={lowest}")
    return lacking


def requirements(extra: str = "") -> list[tuple[str, str]]:
    """(name, lowest version) of each dependency that this Python needs; none where there is no pyproject.toml."""
    try:
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        return []  # installed as a package: its installer has seen to the dependencies
    found = []
    for key in ["dependencies", extra] if extra else ["dependencies"]:
        block = re.search(rf"^{re.escape(key)} = \[(.*?)\]\s*$", text, re.MULTILINE | re.DOTALL)
        if block is None:
            _give_up(f"{ROOT / 'pyproject.toml'}: it lists no {key}: restore the file")
            break
        for item in re.findall(r'"([^"]+)"', block.group(1)):
            parts = re.match(r"([A-Za-z0-9._-]+)>=([0-9.]+)[^;]*(?:;\s*(.*))?", item)
            if parts is None:
                continue
            older_than = re.match(r"python_version < '([0-9.]+)'$", parts.group(3) or "")
            if parts.group(3) and not older_than:
                continue  # of some platforms only, so that everything runs without it
            if older_than is None or sys.version_info[:2] < _numbers(older_than.group(1)):
                found.append((parts.group(1), parts.group(2)))
    return found


def _end_quietly_when_interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C before the program is up, while it still imports, is no reason for a stack trace."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", re.split(r"[a-z+]", version)[0]))


def _give_up(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.exit(2)
