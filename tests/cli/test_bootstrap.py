"""A script finds the interpreter that can run it, whatever it was started with; never in circles."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import bootstrap
from infra.toml_files import read_toml
from tests.interpreters import interpreters
from tests.processes import PATIENCE_S

ROOT = Path(bootstrap.__file__).parent
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("NKI_", "PYTHON", "VIRTUAL_ENV"))}

SCRIPT = """
import os
import bootstrap
bootstrap.enter(__file__{extra})
import sys
print("running in", sys.prefix, "with", sys.argv[1:])
"""


def bare_pythons() -> list[str]:
    """Interpreters without our dependencies: an old one if this machine has one, and this one without site-packages."""
    return [str(path) for version in ("3.8", "3.9") for path in interpreters(version)]


def test_a_pyenv_shim_that_does_not_run_is_no_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    this = f"{sys.version_info[0]}.{sys.version_info[1]}"
    shims, home = tmp_path / "shims", tmp_path / "home"
    for version, text in {
        "3.8": '#!/bin/sh\necho "pyenv: python3.8: command not found" >&2\nexit 127\n',
        this: f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        "3.9": "#!/nowhere/pyenv exec\n",
    }.items():
        for path in (shims / f"python{version}", home / f".pyenv/versions/{version}.7/bin/python3"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
    monkeypatch.setenv("PATH", str(shims))
    assert interpreters("3.8", home) == interpreters("3.9", home) == []
    assert interpreters(this, home) == [shims / f"python{this}", home / f".pyenv/versions/{this}.7/bin/python3"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The bootstrap and what it reads, in a place of their own."""
    for name in ("bootstrap.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "script.py").write_text(SCRIPT.format(extra=""))
    (tmp_path / "test_script.py").write_text(SCRIPT.format(extra=", 'test', create=True"))
    return tmp_path


def start(
    project: Path, *python: str, script: str = "script.py", **environment: str
) -> subprocess.CompletedProcess[str]:
    argv = [*(python or (sys.executable, "-S")), str(project / script), "--flag", "a b"]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=PATIENCE_S, env={**CLEAN, **environment}, cwd="/",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job inherits that it is ignored
    )  # fmt: skip


def test_without_dependencies_it_goes_on_in_the_environment_with_the_same_arguments(project: Path) -> None:
    (project / "script.py").write_text(
        SCRIPT.format(extra="") + "assert not [name for name in os.environ if 'ENTERED' in name]\n"
    )
    for python in ((sys.executable,), ()):
        done = start(project, *python, NKI_OPTIMIZER_VENV=sys.prefix)
        assert done.stdout == f"running in {sys.prefix} with ['--flag', 'a b']\n" and not done.stderr


def test_without_an_environment_one_line_says_what_to_run(project: Path) -> None:
    done = start(project)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "lacks numpy" in done.stderr and f"run {project}/run.sh once" in done.stderr


@pytest.mark.parametrize("python", bare_pythons() or [pytest.param("", marks=pytest.mark.skip("no old Python here"))])
def test_an_old_python_says_one_line_or_goes_on_in_the_environment(project: Path, python: str) -> None:
    alone = start(project, python)
    assert alone.returncode == 2 and alone.stderr.count("\n") == 1 and "Python 3.10 or newer" in alone.stderr
    with_environment = start(project, python, NKI_OPTIMIZER_VENV=sys.prefix)
    assert "running in" in with_environment.stdout, with_environment.stderr


def incomplete_environment(folder: Path) -> Path:
    """A .venv whose Python has no packages at all."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho started >>"{folder}/starts"\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return folder


def test_an_incomplete_environment_is_tried_once_and_then_named(project: Path) -> None:
    venv = incomplete_environment(project / ".venv")
    done = start(project)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"{venv} lacks numpy" in done.stderr
    assert (venv / "starts").read_text() == "started\n"


def test_the_suite_sets_the_environment_up_by_itself_and_passes_a_failure_on(project: Path) -> None:
    setup = project / "run.sh"
    setup.write_text(f'#!/bin/sh\n[ "$1" = --setup ] && mkdir -p "{project}/.venv/bin" && '
                     f'ln -s "{sys.executable}" "{project}/.venv/bin/python"\n')  # fmt: skip
    done = start(project, script="test_script.py")
    assert (project / ".venv" / "bin" / "python").exists()
    assert "lacks" in done.stderr or "running in" in done.stdout
    setup.write_text("#!/bin/sh\nexit 7\n")
    shutil.rmtree(project / ".venv")
    assert start(project, script="test_script.py").returncode == 7


def test_output_that_a_terminal_cannot_show_does_not_end_the_program(project: Path) -> None:
    (project / "script.py").write_text(SCRIPT.format(extra="") + "print('12.3 \\u00b5s \\u2713')\n")
    done = start(project, sys.executable, PYTHONIOENCODING="ascii")
    assert "12.3 ?s ?" in done.stdout, done.stderr


def test_an_interrupt_while_it_still_imports_shows_no_stack_trace(project: Path) -> None:
    more = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    (project / "script.py").write_text(SCRIPT.format(extra="") + more)
    done = start(project, sys.executable)
    assert (done.returncode, done.stderr) == (5, "interrupted\n")
    (project / "script.py").write_text(SCRIPT.format(extra="") + "raise RuntimeError('a fault of ours')\n")
    assert "Traceback" in start(project, sys.executable).stderr


@pytest.mark.parametrize("extra", ["", "test"])
def test_what_it_asks_for_is_what_pyproject_says(extra: str) -> None:
    document = read_toml(ROOT / "pyproject.toml")
    extras = document["tool"]["hatch"]["metadata"]["hooks"]["custom"]["extras"]
    asked = document["project"]["dependencies"] + (extras[extra] if extra else [])
    everywhere = [line for line in asked if "platform" not in line]
    assert [line[:5] for line in asked if line not in everywhere] == ["numba"], "everything runs without it"
    needed = [line for line in everywhere if "python_version" not in line or sys.version_info < (3, 11)]
    wanted = [re.split(r">=|,|;", line)[:2] for line in needed]
    assert bootstrap.requirements(extra) == [tuple(part.strip() for part in pair) for pair in wanted]


@pytest.mark.parametrize("script", ["bootstrap.py", "orchestrator.py", "test_agent.py", "nki_sim/__init__.py"])
def test_an_old_interpreter_can_read_what_it_is_started_with(script: str) -> None:
    ast.parse((ROOT / script).read_text(), feature_version=(3, 8))


def test_the_scripts_enter_before_they_import_anything_of_ours() -> None:
    for script in ("orchestrator.py", "test_agent.py"):
        lines = (ROOT / script).read_text().splitlines()
        entered = next(number for number, line in enumerate(lines) if "bootstrap.enter(" in line)
        early = [line for line in lines[:entered] if re.match(r"\s*(import|from) ", line)]
        assert early == ["from __future__ import annotations", "import bootstrap"], script
