"""An editable install uses the clone's own text from any folder, also after a change and after a pull."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from hatchling.build import build_editable

from tests.house.structure import ROOT

WHERE = """
import nki_sim, nki_optimizer
from nki_optimizer import evaluate
import infra.commands.evaluate as module
print(*(getattr(each, "__file__") for each in (nki_sim, nki_optimizer, module)), sep="\\n")
print(getattr(nki_sim, "MARK", None))
"""


def git(folder: Path, *words: str) -> None:
    kinds = [f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]
    environment = {**os.environ, **dict.fromkeys(kinds, "someone"), "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of this project's files as they are now."""
    folder = tmp_path_factory.mktemp("origin")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        if name and not name.startswith(("tests/", "benchmarks/")) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "as it is now")
    return folder


@pytest.fixture(scope="module")
def clone(origin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user") / "clone"
    git(folder.parent, "clone", "-q", str(origin), str(folder))
    return folder


@pytest.fixture(scope="module")
def site(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site-packages of an environment in which the clone is installed as `pip install -e` does it."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = environment.glob("lib/python3*/site-packages")
    here = os.getcwd()
    os.chdir(clone)  # as a build backend is called
    try:
        wheel = build_editable(str(environment))
    finally:
        os.chdir(here)
    with zipfile.ZipFile(environment / wheel) as archive:
        archive.extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return site


def used(site: Path, folder: Path) -> list[str]:
    """The files that are imported by whoever stands in `folder`, and `nki_sim.MARK`."""
    python = site.parents[2] / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(python), "-c", WHERE], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_site_packages_hold_a_path_and_no_copy(site: Path) -> None:
    ours = {path.name for path in site.iterdir() if "nki" in path.name}
    assert {name for name in ours if not name.endswith(".dist-info")} == {"_nki_optimizer.pth"}


@pytest.mark.parametrize("elsewhere", ["/", "another clone"])
def test_a_change_and_a_pull_are_what_runs_in_any_folder(origin, clone, site, tmp_path, elsewhere) -> None:
    folder = Path(elsewhere)
    if elsewhere != "/":  # a checkout that is not the one installed: its files are below the folder, not in it
        git(tmp_path, "clone", "-q", str(origin), str(tmp_path / "other"))
        folder = tmp_path
    *files, mark = used(site, folder)
    assert all(Path(file).is_relative_to(clone) for file in files) and mark == "None"
    text = (clone / "nki_sim" / "__init__.py").read_text()
    (clone / "nki_sim" / "__init__.py").write_text(text + 'MARK = "changed"\n')
    assert used(site, folder)[-1] == "changed"
    git(clone, "checkout", "-q", "nki_sim/__init__.py")
    (origin / "nki_sim" / "__init__.py").write_text(text + f'MARK = "newer, {folder.name}"\n')
    git(origin, "commit", "-q", "-a", "-m", "newer")
    git(clone, "pull", "-q")
    assert used(site, folder)[-1] == f"newer, {folder.name}"
    git(origin, "revert", "--no-edit", "HEAD")
    git(clone, "pull", "-q")
