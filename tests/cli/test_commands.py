"""`nki-optimizer` and `nki-sim` from any folder, what a shell completes of them, and where they keep things."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nki_optimizer
from accelopt_core.languages.names import MACHINES
from infra import nki_kernel
from infra.command_line import command_help, parser
from infra.runs.default_folders import default_folders, is_installed
from infra.terminal.started_as import program, started_as
from infra.toml_files import read_toml
from nki_optimizer.wheel_files import Extras
from tests.house.structure import PACKAGES, ROOT, TOP, modules
from tests.processes import PATIENCE_S

KERNEL = ROOT / "nkibench_seeds" / "silu" / "kernel.py"


def command(name: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As the script that an installer writes for an entry point."""
    project = read_toml(ROOT / "pyproject.toml")["project"]
    module, function = project["scripts"][name].split(":")
    code = (
        f"import sys; sys.path.append({str(ROOT)!r}); from {module} import {function}; "
        f"sys.argv = [{name!r}, *sys.argv[1:]]; sys.exit({function}())"
    )
    return subprocess.run(
        [sys.executable, "-I", "-c", code, *arguments], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S
    )


def test_the_optimizer_starts_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text("raise SystemExit('the user has a file of this name too')\n")
    done = command("nki-optimizer", "config", "--rounds", "3", folder=tmp_path)
    assert done.returncode == 0 and "rounds = 3\n" in done.stdout, done.stderr


def test_the_simulator_starts_from_any_folder_and_names_itself(tmp_path: Path) -> None:
    done = command("nki-sim", "check", str(KERNEL), folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "0 errors, 0 warnings for NKI 0.7\n"), done.stderr
    assert command("nki-sim", folder=tmp_path).stderr.startswith("usage: nki-sim ")


def test_the_simulator_enters_the_environment_when_its_python_has_nothing(tmp_path: Path) -> None:
    """`python -m nki_sim` in a clone; here with an environment that only says what it was given."""
    for name in ("bootstrap.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "nki_sim").mkdir()
    shutil.copy(ROOT / "nki_sim" / "__init__.py", tmp_path / "nki_sim")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "entered with $*"\n')
    python.chmod(0o755)
    (tmp_path / "run.sh").write_text("echo set up\n")
    done = subprocess.run(
        [sys.executable, "-S", "-m", "nki_sim", "check", "a kernel.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["set up", "entered with -m nki_sim check a kernel.py"], done.stderr


def test_the_package_offers_the_kernel_class() -> None:
    assert nki_optimizer.NKIKernel is nki_kernel.NKIKernel and nki_optimizer.TREE == ROOT
    with pytest.raises(AttributeError, match="has no attribute 'Kernel'"):
        getattr(nki_optimizer, "Kernel")  # noqa: B009


def test_every_name_of_the_library_is_there_and_in_its_page() -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    for name in set(nki_optimizer.__all__) - {"TREE"}:
        assert getattr(nki_optimizer, name) is not None and name in page, name
    assert set(nki_optimizer.__all__) - {"TREE"} == set(nki_optimizer._OFFERED) <= set(dir(nki_optimizer))


def test_a_package_of_the_callers_under_one_of_our_names_is_named(tmp_path: Path) -> None:
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra" / "__init__.py").touch()
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; sys.path.append({str(ROOT)!r}); "
        "from nki_optimizer import NKIKernel"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and f"{tmp_path}/infra/__init__.py has that name" in done.stderr


def test_a_wheel_has_every_part_of_the_program() -> None:
    wheel = read_toml(ROOT / "pyproject.toml")["tool"]["hatch"]["build"]["targets"]["wheel"]
    placed = wheel["hooks"]["custom"]["files"]
    parts = {*(f"{name}.py" for name in TOP), *PACKAGES, "prompts", "nkibench_seeds", "docs", "skills"} - {
        "nki_optimizer"
    }
    assert {placed.get(part) for part in parts} == {f"nki_optimizer/tree/{part}" for part in parts}
    assert {place.split("/")[0] for place in placed.values()} == {"nki_optimizer", "nki_sim"}


def test_an_extra_that_is_a_plugin_is_installed_from_where_it_stands(tmp_path: Path) -> None:
    def extras() -> dict[str, list[str]]:
        made: dict[str, dict[str, list[str]]] = {}
        Extras(str(tmp_path), {"extras": {"abacus": ["nki-optimizer-abacus"], "test": ["pytest"]}}).update(made)
        return made["optional-dependencies"]

    assert extras() == {"abacus": ["nki-optimizer-abacus"], "test": ["pytest"]}
    (tmp_path / "plugins/abacus").mkdir(parents=True)
    (tmp_path / "plugins/test").mkdir()
    beside = f"nki-optimizer-abacus @ {(tmp_path / 'plugins/abacus').as_uri()}"
    assert extras() == {"abacus": [beside], "test": ["pytest"]}


def test_a_clone_keeps_everything_beside_the_program(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    kept = default_folders(tmp_path, {"XDG_DATA_HOME": "/data"}, Path("/elsewhere"))
    assert kept.checkpoints == tmp_path / "checkpoints"
    assert kept.memory == tmp_path / "optimization_memory" / "rewrites.json"
    assert kept.calibrations == tmp_path / "calibrations"


@pytest.mark.parametrize(
    ("named", "data"),
    [(None, "{home}/.local/share"), ("", "{home}/.local/share"), ("a/b", "{home}/.local/share"), ("/data", "/data")],
)
def test_installed_it_keeps_everything_in_the_users_folders(tmp_path, monkeypatch, named, data) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    environment = {} if named is None else {"XDG_DATA_HOME": named}
    kept = default_folders(tmp_path, environment, Path("/where/it/began"))
    folder = Path(data.format(home="/home/somebody")) / "nki-optimizer"
    assert (kept.checkpoints, kept.memory, kept.calibrations) == (
        Path("/where/it/began/checkpoints"), folder / "rewrites.json", folder / "calibrations",
    )  # fmt: skip


def test_texts_name_the_command_that_there_is(tmp_path: Path) -> None:
    text = (
        "run `orchestrator.py doctor`\n"
        "  ./run.sh HOST --rounds 50          on a device\n"
        "  python3 orchestrator.py --resume   go on\n"
        "  python3 orchestrator.py --kernel mine.py\n"
        "  python3 orchestrator.py\n"
        "`python3 -m nki_sim run` or `python -m nki_sim migrate`\n"
        "my_orchestrator.pyc\n"
    )
    assert is_installed(tmp_path) and program(tmp_path) == "nki-optimizer"
    assert started_as(text, tmp_path) == (
        "run `nki-optimizer doctor`\n"
        "  nki-optimizer HOST --rounds 50     on a device\n"
        "  nki-optimizer --resume             go on\n"
        "  nki-optimizer --kernel mine.py\n"
        "  nki-optimizer\n"
        "`nki-sim run` or `nki-sim migrate`\n"
        "my_orchestrator.pyc\n"
    )
    assert started_as(text, ROOT) == text and program(ROOT) == "orchestrator.py"


def test_texts_name_pages_that_there_are_and_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in modules().values())
    named = set(re.findall(r"\b(?:docs/[a-z_]+|skills/[\w/-]+)\.md\b", texts))
    assert len(named) > 5 and not [page for page in named if not (ROOT / page).is_file()]
    assert started_as("so it is (docs/tasks.md); x/docs/tasks.md", tmp_path) == (
        f"so it is ({tmp_path}/docs/tasks.md); x/docs/tasks.md"
    )
    monkeypatch.setattr("infra.terminal.started_as.is_installed", lambda tree: True)
    helped = command_help("mcp") + parser().format_help()
    for page in ("docs/agents.md", "docs/scripts.md", "docs/shapes.md", "skills/nki-optimizer/SKILL.md"):
        assert str(ROOT / page) in helped
    assert " docs/" not in helped and "(docs/" not in helped


PRESS_TAB = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
function=$(complete -p "$1"); function=${function#*-F }; function=${function%% *}
"$function" "$1" "${@: -1}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for name in ("nki-optimizer", "nki-sim"):
        done = command(name, "--print-completion", "bash", folder=folder)
        assert done.returncode == 0, done.stderr
        (folder / name).write_text(done.stdout)
    (folder / "a_kernel.py").touch()
    return folder


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("nki-optimizer doc", {"doctor"}),
        ("nki-optimizer --max-c", {"--max-cost"}),
        ("nki-optimizer --machine tr", {"trn1", "trn2", "trn3"}),
        ("nki-optimizer --language ", set(MACHINES)),
        ("nki-optimizer --task mat", {"matmul", "matmul_add_rmsnorm"}),
        ("nki-optimizer --rounds 5 --kernel a_", {"a_kernel.py"}),
        ("nki-optimizer explain a_", {"a_kernel.py"}),
        ("nki-sim mig", {"migrate"}),
        ("nki-sim check a_", {"a_kernel.py"}),
        ("nki-sim check a_kernel.py --nki 0.6", {"0.6"}),
    ],
)
def test_a_shell_completes(scripts: Path, typed: str, completed: set[str]) -> None:
    words = typed.split(" ")
    done = subprocess.run(
        ["bash", "-c", PRESS_TAB, "bash", str(scripts / words[0]), *words], cwd=scripts, capture_output=True, text=True
    )
    assert set(done.stdout.split()) == completed, done.stderr
