"""A language that is a distribution of its own: found where it is installed, and nothing amiss where it is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import config
import orchestrator
from accelopt_core.candidate import Candidate
from infra.command_line import read
from infra.commands.answer import USAGE
from infra.runs.run_folder import RunFolder
from infra.settings_reader import SettingsError
from tests.house.structure import ROOT
from tests.infra.samples import manifest, measured
from tests.languages.toy_plugin import KERNEL, install


def python(code: str, folder: Path, *arguments: str) -> str:
    """What it prints where the plugin is installed in `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env={"PYTHONPATH": str(folder)}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("toys"))


def test_it_has_its_machines_its_tasks_its_suite_and_its_settings(toys: Path, tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text("[run]\nlanguage = 'toy'\nbeads = [3, 4]\n")
    code = """
import sys
from pathlib import Path
import config
import orchestrator
from accelopt_core.candidate import Candidate
from infra.command_line import parser, read
from infra.tasks.seed_index import load_seed, find_reference
from accelopt_core.languages.registry import language_of
seed = load_seed("double")
print(seed.language, config.SUITES["toy"], language_of(seed.kernel_source).name)
print(read(["--language", "toy", "--machine", "abacus", "--beads", "1,2"], {}).settings.run.beads)
print(read(["--config", sys.argv[1]], {}).settings.run.beads, read([], {"NKI_OPT_BEADS": "5"}).settings.run.beads)
settings = read(["--beads", "7"], {}).settings
print(config.from_document(config.to_document(settings), "a run").run.beads)
print("--beads N,N,..." in parser().format_help(), "abacus" in parser().format_help())
"""
    said = python(code, toys, str(tmp_path / "old.toml")).splitlines()
    assert said == ["toy toy Toy", "(1, 2)", "(3, 4) (5,)", "(7,)", "True True"]


def test_hosts_are_sent_what_judges_it_and_find_it_there(toys: Path, tmp_path: Path) -> None:
    code = """
import json
from infra.judging.shipment import files_to_ship, judge_fingerprint
print(json.dumps({name: str(path) for name, path in files_to_ship("toy").items()}))
print(json.dumps([name for name in files_to_ship() if "toy" in name]), judge_fingerprint("toy") != judge_fingerprint())
"""
    sent, rest = python(code, toys).splitlines()
    files = {name: Path(path) for name, path in json.loads(sent).items()}
    assert rest == "[] True", "nothing of it goes along with NKI kernels"
    assert {name.partition("/")[2] for name in files if "toy" in name} == {
        "entry_points.txt", "__init__.py", "judging.py", "doctor.py",
    }  # fmt: skip
    for name, path in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(path.read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "infra.judging.judge", "--describe", "--language", "toy", "--machine", "abacus"],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert "the abacus is at the mender's" in done.stdout


def test_one_that_does_not_load_is_named_and_nki_works(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / "nki_optimizer_toy/__init__.py").write_text("import of_an_older_release\n")
    code = """
from infra.command_line import read
from infra.command_line import read
from infra.commands.answer import USAGE
from infra.runs.run_folder import RunFolder
from infra.settings_reader import SettingsError
print(read(["--language", "nki"], {}).settings.run.language)
try:
    read(["--language", "toy"], {})
except SettingsError as error:
    print(error)
"""
    first, second = python(code, tmp_path).splitlines()
    assert first == "nki" and "'toy' is not one of nki" in second
    assert ": the plugin toy does not load: ModuleNotFoundError" in second


def test_runs_of_a_language_that_is_gone_are_shown_and_not_resumed(tmp_path, capsys) -> None:
    settings = config.to_document(config.Settings())
    settings["run"] |= {"language": "toy", "beads": [3]}
    folder = RunFolder.create(tmp_path, manifest("r1", language="toy"), settings)
    folder.best(Candidate("input", KERNEL), measured(12.0))
    folder.close()
    runs = ["--checkpoints", str(tmp_path)]
    assert orchestrator.main(["runs", *runs]) == 0 and orchestrator.main(["show", "r1", *runs]) == 0
    assert "12.0 µs" in capsys.readouterr().out
    assert orchestrator.main(["--resume", "r1", *runs]) == USAGE
    assert "language: 'toy' is not one of nki" in capsys.readouterr().err


def test_without_it_its_name_says_what_to_do_and_what_a_run_did_not_use_is_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'toy' is not one of nki.*pip install 'nki-optimizer\[NAME\]'"):
        config.RunSettings(language="toy")
    document = config.to_document(config.Settings())
    document["run"] |= {"beads": [], "wires": None}
    assert config.from_document(document, "a run") == config.Settings()
    (tmp_path / "old.toml").write_text("[run]\nbeads = []\nrounds = 3\n")
    assert read(["--config", "old.toml"], {}, tmp_path).settings.run.rounds == 3
    document["run"] |= {"beads": [3]}
    with pytest.raises(SettingsError, match="unknown setting"):
        config.from_document(document, "a run")
