"""The plugin as a distribution: what is shipped to hosts, who imports Triton and CUDA, what the README lists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import config
import nki_optimizer_triton
from accelopt_core.languages.plugin import GROUP, plugins
from infra.judging.shipment import files_to_ship
from infra.settings_reader import SettingsError
from infra.ssh.remote_agent.leftovers import PREFIXES
from nki_optimizer_triton.language.language import TRITON
from tests.house.test_shipped import ALLOWED, LOAD, OURS

FOLDER = Path(nki_optimizer_triton.__file__).parent
PLUGIN = FOLDER.parent
FILES = {
    path.relative_to(FOLDER).as_posix(): path for path in sorted(FOLDER.rglob("*.py")) if "seeds" not in path.parts
}
MOST_BESIDE_ROOMS = 10


def test_it_is_installed_from_here() -> None:
    assert plugins()["triton"] is nki_optimizer_triton.PLUGIN is entry_points(group=GROUP)["triton"].load()
    here = Path(__file__).parents[1] / "nki_optimizer_triton"
    assert here == FOLDER, "pip install -e plugins/triton"
    assert nki_optimizer_triton.PLUGIN.machines == TRITON.machines


def test_every_file_of_the_shipment_loads_with_what_a_host_has(tmp_path: Path) -> None:
    """From a copy that holds the shipment only: what is not shipped cannot be imported there."""
    sent = files_to_ship("triton")
    for name, path in sent.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(path.read_bytes())
    programs = {f"nki_optimizer_triton/{name}" for name in FILES if name.endswith("worker.py")}
    assert programs <= set(sent) and "nki_optimizer_triton/running.py" not in sent
    names = [name.removesuffix(".py").replace("/", ".") for name in sent if name.startswith("nki_optimizer_triton/")]
    names = [name.removesuffix(".__init__") for name in names]
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOAD, str(tmp_path), " ".join(names)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    loaded = {line.partition(" ")[0] for line in done.stdout.splitlines()}
    foreign = loaded - ALLOWED - OURS - {"nki_optimizer_triton"} - set(sys.stdlib_module_names)
    assert not {name for name in foreign if not name.startswith("_") and name != "cython_runtime"}


def test_triton_and_cuda_are_imported_by_the_processes_that_need_them_alone() -> None:
    """A judge, and whoever traces a candidate, loads neither; what stands in a string is a candidate's."""
    found = {}
    for name, path in FILES.items():
        tree = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        plain = {alias.name.partition(".")[0] for node in tree if isinstance(node, ast.Import) for alias in node.names}
        plain |= {(node.module or "").partition(".")[0] for node in tree if isinstance(node, ast.ImportFrom)}
        if plain & {"triton", "cuda", "pynvml"}:
            found[name] = plain & {"triton", "cuda", "pynvml"}
    assert found == {
        "compiling/worker.py": {"triton"},
        "execution/on_device/calls.py": {"cuda"},
        "execution/on_device/clocks.py": {"pynvml"},
    }
    texts = "\n".join(path.read_text(encoding="utf-8") for path in FILES.values())
    started = re.findall(
        r"^ *(?:from|import) nki_optimizer_triton\.(?:tracing|compiling|execution\.\w+)\.worker", texts, re.M
    )
    assert not started, "they are started, not imported"


def test_its_scratch_folders_are_among_those_that_clean_knows() -> None:
    texts = "\n".join(path.read_text(encoding="utf-8") for path in FILES.values())
    assert re.findall(r"(?:ScratchFolder|mkdtemp|TemporaryDirectory)\((.*?)\)", texts) == ['"nki-plugin-"']
    assert "nki-plugin-" in PREFIXES


def test_the_readme_lists_every_file() -> None:
    text = (PLUGIN / "README.md").read_text(encoding="utf-8").partition("nki_optimizer_triton/\n")[2]
    above: list[str] = []
    listed = set()
    for line in text.partition("```")[0].splitlines():
        names = line.strip().split("  ")[0].split()
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        folders = [name for name in names if name.endswith("/")]
        if folders:
            above[depth:] = folders[:1]
        listed |= {"".join(above[:depth]) + name for name in names if name.endswith(".py")}
    assert listed == {name for name in FILES if not name.endswith("__init__.py")} | {"__init__.py"}


def test_few_files_stand_beside_the_rooms_and_each_room_says_what_it_is_for() -> None:
    assert len([name for name in FILES if "/" not in name]) <= MOST_BESIDE_ROOMS
    for name, path in FILES.items():
        if name.endswith("__init__.py"):
            assert len((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]) > 20, name


@pytest.mark.parametrize(("settings", "says"), [
    ({"workloads": ("a",)}, "workloads: of which definition"),
    ({"kernel": Path("k.json"), "in_place": True}, "in-place: a solution is no kernel file"),
])  # fmt: skip
def test_its_settings_are_checked_with_the_others(settings: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        config.GROUPS["run"](**settings)
