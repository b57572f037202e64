"""What `pip install` gives: a wheel, built by way of the source distribution, in an empty environment elsewhere.

Needs a package index, as an installation does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import jsonschema
import pytest

from infra.judging.shipment import files_to_ship, judge_fingerprint
from infra.toml_files import read_toml
from tests.e2e.kernels import REFERENCE, SLOW
from tests.house.structure import ROOT
from tests.processes import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.extra("dev")]
KERNELS = "nki_optimizer/tree/nkibench_seeds"
LEFT_OUT = ("tests/", "benchmarks/", "checkpoints/", "optimization_memory/", "plugins/")
"""Of the repository; with what is for a clone only, at its top."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    _succeed(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))
    return folder


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    _succeed(sys.executable, "-m", "venv", str(folder))
    (wheel,) = built.glob("*.whl")
    _succeed(
        str(folder / "bin" / "python"), "-m", "pip", "install", "--no-compile", "--disable-pip-version-check",
        str(wheel),
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def site(environment: Path) -> Path:
    return Path(next(environment.glob("lib/python3*/site-packages")))


def _succeed(*argv: str) -> None:
    done = subprocess.run(argv, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def start(environment: Path, folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """A command of that environment, by a user whose home is `folder`/home and who is in `folder`/work."""
    (folder / "work").mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return subprocess.run(
        [str(environment / "bin" / argv[0]), *argv[1:]], cwd=folder / "work",
        env={**kept, "HOME": str(folder / "home")}, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip


def test_only_two_names_reach_site_packages(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    version = read_toml(ROOT / "pyproject.toml")["project"]["version"]
    assert {name.split("/")[0] for name in names} == {
        "nki_optimizer", "nki_sim", f"nki_optimizer-{version}.dist-info",
    }  # fmt: skip
    assert [name for name in names if name.startswith("nki_sim/")] == ["nki_sim/__init__.py"]


def test_the_wheel_has_every_file_of_the_program_and_the_source_every_file(built: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    plugins = {name for name in listed if name.startswith("plugins/")}
    assert set(listed) - plugins <= inside and not plugins & inside
    (wheel,) = built.glob("*.whl")
    inside = {
        name.removeprefix("nki_optimizer/tree/")
        for name in zipfile.ZipFile(wheel).namelist()
        if name.startswith("nki_optimizer/tree/")
    }
    wanted = {name for name in listed if "/" in name and not name.startswith((".", "nki_optimizer/", *LEFT_OUT))}
    assert inside == wanted | {"orchestrator.py", "config.py", "bootstrap.py", "setup_trn2.sh", "README.md"}


def test_a_run_leaves_its_results_with_the_user_and_nothing_in_the_installation(environment, site, tmp_path) -> None:
    def installed() -> set[str]:
        return {str(path) for path in site.rglob("*") if "__pycache__" not in path.parts}

    before = installed()
    (tmp_path / "mine.py").write_text(SLOW)
    (tmp_path / "mine_reference.py").write_text(REFERENCE)
    run = start(environment, tmp_path, "nki-optimizer", "--kernel", "../mine.py", "--rounds", "1")
    assert run.returncode == 0 and "improved" in run.stdout, run.stderr
    (folder,) = (tmp_path / "work" / "checkpoints").iterdir()
    assert (folder / "best_kernel.py").is_file()
    data = tmp_path / "home" / ".local" / "share" / "nki-optimizer"
    assert (data / "rewrites.json").is_file()
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["checkpoints"]
    assert installed() == before
    shown = start(environment, tmp_path, "nki-optimizer", "runs")
    assert folder.name in shown.stdout, shown.stderr


def test_help_names_the_command_and_where_things_are_kept(environment: Path, tmp_path: Path) -> None:
    said = start(environment, tmp_path, "nki-optimizer", "--help").stdout
    assert said.startswith("usage: nki-optimizer ") and "$XDG_DATA_HOME/nki-optimizer" in said
    whole = start(environment, tmp_path, "nki-optimizer", "--help-all").stdout
    assert str(tmp_path / "work" / "checkpoints") in "".join(whole.split())
    explained = start(environment, tmp_path, "nki-optimizer", "explain", "--help").stdout
    for text in (said, whole, explained):
        assert "orchestrator.py" not in text and "run.sh" not in text
    wrong = start(environment, tmp_path, "nki-optimizer", "--kernel", "nowhere.py")
    assert wrong.returncode == 2 and wrong.stderr.startswith("nki-optimizer: ")


def test_pages_that_messages_name_are_there(environment: Path, site: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mine.py").write_text(SLOW)
    (tmp_path / "work" / "mine_reference.py").write_text("import numpy as np\n")
    wrong = start(environment, tmp_path, "nki-optimizer", "--kernel", "mine.py")
    (page,) = re.findall(r"\((/\S+/docs/tasks\.md)\)", wrong.stderr)
    assert wrong.returncode == 2 and Path(page).is_file() and Path(page).is_relative_to(site), wrong.stderr
    helped = start(environment, tmp_path, "nki-optimizer", "mcp", "--help").stdout
    (skill,) = re.findall(r"/\S+/SKILL\.md", "".join(helped.split("\n")))
    assert Path(skill).is_file()


AN_AGENT = """
import json, pathlib, subprocess, sys
asked = [
    ("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}),
    ("tools/list", {}),
    ("tools/call", {"name": "evaluate", "arguments": {"kernel": "mine.py"}}),
]
program = str(pathlib.Path(sys.executable).with_name("nki-optimizer"))
server = subprocess.Popen([program, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for number, (method, params) in enumerate(asked):
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    print(json.dumps(message), file=server.stdin, flush=True)
    answer = json.loads(server.stdout.readline())
    if not number:
        print('{"jsonrpc": "2.0", "method": "notifications/initialized"}', file=server.stdin, flush=True)
server.stdin.close()
print(json.dumps(json.loads(answer["result"]["content"][0]["text"])["verdict"]), server.wait())
"""


def test_an_agent_is_served_with_the_extra(environment: Path, built: Path, tmp_path: Path) -> None:
    """The last of this file: it puts more into the environment."""
    (wheel,) = built.glob("*.whl")
    (tmp_path / "work").mkdir()
    for name, text in (("mine.py", SLOW), ("mine_reference.py", REFERENCE), ("agent.py", AN_AGENT)):
        (tmp_path / "work" / name).write_text(text)
    without = start(environment, tmp_path, "nki-optimizer", "mcp")
    assert without.returncode == 2 and "nki-optimizer[mcp]" in without.stderr
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--no-compile", f"{wheel}[mcp]"]
    _succeed(*pip, "--disable-pip-version-check")
    served = start(environment, tmp_path, "python", "agent.py")
    assert served.stdout == '"measured" 0\n', served.stderr


def test_the_doctor_proves_the_simulator(environment: Path, tmp_path: Path) -> None:
    done = start(environment, tmp_path, "nki-optimizer", "doctor")
    assert done.returncode == 0 and "known kernel          right on simulated trn2" in done.stdout, done.stdout


@pytest.mark.parametrize("how", [("nki-sim",), ("python", "-m", "nki_sim")], ids=" ".join)
def test_the_simulator_by_itself(environment: Path, site: Path, tmp_path: Path, how: tuple[str, ...]) -> None:
    kernel = str(site / KERNELS / "silu" / "kernel.py")
    checked = start(environment, tmp_path, *how, "check", kernel)
    assert checked.stdout == "0 errors, 0 warnings for NKI 0.7\n", checked.stderr
    profiled = start(environment, tmp_path, *how, "profile", kernel, "--shape", "256x512:float32")
    assert profiled.returncode == 0 and "us on simulated trn2" in profiled.stdout, profiled.stderr


def test_python_imports_the_two_names_and_no_other(environment: Path, site: Path, tmp_path: Path) -> None:
    code = (
        "import sys; before = list(sys.path); import nki_sim, nki_sim.machine; assert sys.path == before; "
        "from nki_optimizer import NKIKernel, TREE; assert sys.path == [*before, str(TREE)]; "
        "print(nki_sim.machine.__file__, NKIKernel.__module__)"
    )
    done = start(environment, tmp_path, "python", "-c", code)
    assert done.stdout.split() == [str(site / "nki_optimizer/tree/nki_sim/machine.py"), "infra.nki_kernel"], done.stderr
    for name in ("config", "bootstrap", "orchestrator", "infra", "prompts", "accelopt_core", "ka_extensions"):
        done = start(environment, tmp_path, "python", "-c", f"import {name}")
        assert "ModuleNotFoundError" in done.stderr, name


def test_what_travels_to_a_host_is_what_travels_from_a_clone(environment: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from nki_optimizer import TREE; sys.path.insert(0, str(TREE)); "
        "from infra.judging.shipment import files_to_ship, judge_fingerprint; "
        "print(judge_fingerprint(), *files_to_ship())"
    )
    done = start(environment, tmp_path, "python", "-c", code)
    assert done.stdout.split() == [judge_fingerprint(), *files_to_ship()], done.stderr


PROGRAM = """
import numpy as np
from nki_optimizer import evaluate, optimize


def add_rows(x, y):
    return x + np.tile(y, (2, 1))


inputs = [(256, 2048), (128, 2048)]
print(evaluate("mine.py", add_rows, inputs=inputs).kind)
outcome = optimize("mine.py", add_rows, inputs=inputs, rounds=1, provider="catalogue")
print(outcome.improved, outcome.folder)
"""


def test_the_library_and_its_documents(environment: Path, site: Path, tmp_path: Path) -> None:
    """A user's program beside a file called as one of ours; its run is read as a document that keeps to its schema."""
    (tmp_path / "work").mkdir()
    for name, text in (("program.py", PROGRAM), ("mine.py", SLOW), ("config.py", "raise SystemExit('not theirs')\n")):
        (tmp_path / "work" / name).write_text(text)
    ran = start(environment, tmp_path, "python", "program.py")
    folder = next((tmp_path / "work" / "checkpoints").iterdir())
    assert ran.stdout.split() == ["measured", "True", str(folder)], ran.stderr
    shown = start(environment, tmp_path, "nki-optimizer", "show", "--json")
    document = json.loads(shown.stdout)
    schema = site / "nki_optimizer/tree/infra/documents/schemas/run-1.schema.json"
    jsonschema.validate(document, json.loads(schema.read_text()))
    assert document["schema"] == "nki-optimizer/run/1" and document["folder"] == str(folder)
    profiled = start(
        environment, tmp_path, "nki-sim", "profile", "mine.py", "--shape", "256x2048", "128x2048", "--json"
    )
    assert json.loads(profiled.stdout)["schema"] == "nki-optimizer/profile/1", profiled.stderr
