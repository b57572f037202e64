"""run.sh on a machine that has nothing: real environments and real pip, but no network.

The project it sets up here is a small one that builds itself, so that pip needs no index.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S, alive, eventually

ROOT = Path(__file__).parents[2]
BASE_PYTHON = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"

PYPROJECT = """
[build-system]
requires = []
build-backend = "own_backend"
backend-path = ["."]

[project]
name = "nki-optimizer"
version = "0.1.0"
dependencies = [{dependencies}]

[project.optional-dependencies]
test = []
"""

OWN_BACKEND = '''
"""The smallest build backend that pip accepts: an editable wheel that is one .pth file."""
import os, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "nki_optimizer-0.1.0-py3-none-any.whl"
    dependencies = os.environ.get("TEST_DEPENDENCIES", "")
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        info = "nki_optimizer-0.1.0.dist-info/"
        wheel.writestr("nki_optimizer.pth", os.getcwd() + "\\n")
        requires = "".join("Requires-Dist: %s\\n" % item for item in dependencies.split())
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: nki-optimizer\\nVersion: 0.1.0\\n"
                       "Provides-Extra: test\\n" + requires)
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: own\\nRoot-Is-Purelib: true\\n"
                       "Tag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
'''

ORCHESTRATOR = """
import os, sys
print("orchestrator in", sys.prefix, "at", os.getcwd(), "with", sys.argv[1:])
sys.exit(3)
"""

pytestmark = pytest.mark.skipif(not BASE_PYTHON.exists(), reason=f"no {BASE_PYTHON} to build environments with")


def make_project(folder: Path) -> Path:
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "run.sh", folder / "run.sh")
    (folder / "pyproject.toml").write_text(PYPROJECT.format(dependencies=""))
    (folder / "own_backend.py").write_text(OWN_BACKEND)
    (folder / "orchestrator.py").write_text(ORCHESTRATOR)
    return folder


def run(
    project: Path, *arguments: str, cwd: Path | None = None, script: str = "run.sh", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(project / script), *arguments], cwd=cwd or project, env=surroundings(**environment), capture_output=True,
        text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def surroundings(**environment: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    path = f"{BASE_PYTHON.parent}:/usr/bin:/bin"
    # No index, no retries: a test that reaches for the network fails at once instead of hanging.
    offline = {"PIP_NO_INDEX": "1", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    return {**kept, "PATH": path, **offline, **environment}


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A project in a folder with a blank in its name, after its first start."""
    project = make_project(tmp_path_factory.mktemp("run sh") / "my project")
    return project, run(project, "ubuntu@10.0.0.1", "--rounds", "3", "a b", cwd=Path("/"))


def test_the_first_start_builds_the_environment_and_runs_in_it_with_the_same_words(ready) -> None:
    project, done = ready
    assert done.returncode == 3, done.stderr  # the orchestrator's own status
    assert done.stdout == (f"orchestrator in {project}/.venv at / with ['ubuntu@10.0.0.1', '--rounds', '3', 'a b']\n")
    assert "Setting up" in done.stderr and not (project / ".venv.setup").exists()


def test_the_second_start_sets_nothing_up(ready) -> None:
    project, _ = ready
    ready_file = project / ".venv" / ".ready"
    before = ready_file.stat().st_mtime_ns
    done = run(project)
    assert done.stderr == "" and "with ['demo']" in done.stdout
    assert ready_file.stat().st_mtime_ns == before


def test_it_is_started_through_a_symbolic_link_from_anywhere(ready, tmp_path: Path) -> None:
    project, _ = ready
    (tmp_path / "link").symlink_to(project / "run.sh")
    (tmp_path / "second").symlink_to("link")
    done = run(tmp_path, "x", script="second")
    assert f"at {tmp_path} with ['x']" in done.stdout, done.stderr


def test_other_dependencies_are_installed_at_the_next_start(ready) -> None:
    project, _ = ready
    (project / "pyproject.toml").write_text(PYPROJECT.format(dependencies="") + "# changed\n")
    done = run(project, "--setup")
    assert done.returncode == 0 and "Setting up" in done.stderr
    assert run(project, "--setup").stderr == ""


def test_a_moved_checkout_is_set_up_again(ready, tmp_path: Path) -> None:
    project, _ = ready
    moved = tmp_path / "moved"
    shutil.copytree(project, moved, symlinks=True)
    done = run(moved)
    assert "Setting up" in done.stderr and f"orchestrator in {moved}/.venv" in done.stdout
    assert run(moved, "--setup").stderr == ""


def test_a_package_index_that_is_not_reached_is_one_line_and_the_next_start_tries_again(ready, tmp_path: Path) -> None:
    project = tmp_path / "copy"
    shutil.copytree(ready[0], project, symlinks=True)
    unreachable = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    done = run(project, TEST_DEPENDENCIES="a-package-nobody-has", **unreachable)
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and len(lines) == 2 and "cannot reach the package index" in lines[1]
    assert not (project / ".venv" / ".ready").exists() and not (project / ".venv.setup").exists()
    assert run(project).returncode == 3


def only_tools(folder: Path) -> Path:
    """A PATH with the usual tools, and no Python."""
    folder.mkdir()
    for name in ("cat", "cksum", "dirname", "readlink", "mkdir", "rm", "mv", "grep", "tail", "cut", "sleep", "head"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


ABSENT = Path("/opt/homebrew/bin/python3").exists() or Path("/usr/local/bin/python3").exists()


@pytest.mark.skipif(ABSENT, reason="this machine has a Python that run.sh finds without PATH")
def test_without_python_it_says_how_to_get_one(tmp_path: Path) -> None:
    project, tools = make_project(tmp_path / "p"), only_tools(tmp_path / "bin")
    script(tools / "python3", "echo 'python3: command not found' >&2; exit 127")  # as version managers have it
    script(tools / "python3.12", 'exec /bin/sh -c "exit 1"')
    done = run(project, PATH=str(tools))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "no Python 3.10 to 3.14 found" in done.stderr and "apt install" in done.stderr


@pytest.mark.skipif(ABSENT, reason="this machine has a Python that run.sh finds without PATH")
def test_a_python_without_venv_names_the_package_to_install(tmp_path: Path) -> None:
    project, tools = make_project(tmp_path / "p"), only_tools(tmp_path / "bin")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "ensurepip.py").write_text("raise ImportError('left out, as Debian does')")
    script(tools / "python3", f'PYTHONPATH="{broken}" exec "{BASE_PYTHON}" "$@"')
    done = run(project, PATH=str(tools))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"sudo apt install python{version}-venv" in done.stderr


def test_a_named_python_that_does_not_suit_is_an_error_and_not_replaced(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p")
    script(tmp_path / "old", "exit 1")
    done = run(project, NKI_OPTIMIZER_PYTHON=str(tmp_path / "old"))
    assert done.returncode == 2 and f"NKI_OPTIMIZER_PYTHON={tmp_path}/old is no working Python" in done.stderr


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p")
    (project / ".venv").mkdir()
    (project / ".venv" / "precious").write_text("mine")
    done = run(project)
    assert done.returncode == 2 and "is no virtual environment" in done.stderr
    assert (project / ".venv" / "precious").read_text() == "mine"


@pytest.mark.slow
def test_two_first_starts_at_once_wait_for_each_other(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p")
    both = [
        subprocess.Popen([str(project / "run.sh")], env=surroundings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True, stdin=subprocess.DEVNULL)
        for _ in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=PATIENCE_S) for process in both]
    assert [process.returncode for process in both] == [3, 3], outputs
    assert sum("first start only" in error for _, error in outputs) == 1
    assert not (project / ".venv.setup").exists()


def test_the_lock_of_a_dead_set_up_is_taken_over(ready) -> None:
    project, _ = ready
    gone = subprocess.Popen(["true"])
    gone.wait()
    (project / ".venv.setup").mkdir()
    (project / ".venv.setup" / "pid").write_text(f"{gone.pid}\n")
    (project / ".venv" / ".ready").unlink()
    assert run(project).returncode == 3
    assert not (project / ".venv.setup").exists()


@pytest.mark.slow
def test_an_interrupted_set_up_leaves_no_lock_and_no_installer(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p")
    (project / "own_backend.py").write_text(
        "import os, time\n"
        "def build_editable(*a, **k):\n"
        "    open('builder.pid', 'w').write(str(os.getpid()))\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [str(project / "run.sh")], env=surroundings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    note = project / "builder.pid"
    assert eventually(lambda: note.exists() and note.read_text() != "")
    builder = int(note.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 143
    process.communicate()
    assert not (project / ".venv.setup").exists() and not (project / ".venv" / ".ready").exists()
    assert eventually(lambda: not alive(builder))


@pytest.mark.program("shellcheck")
def test_shellcheck_has_nothing_to_say() -> None:
    done = subprocess.run(["shellcheck", str(ROOT / "run.sh")], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == ""
