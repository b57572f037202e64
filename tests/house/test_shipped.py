"""What is shipped to a host loads there: with the standard library, NumPy and ml_dtypes, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from infra.judging.shipment import files_to_ship
from tests.house.structure import ROOT

ALLOWED = {"numpy", "ml_dtypes"}
OURS = {"accelopt_core", "infra", "ka_extensions", "nki_sim"}

LOAD = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
for name in sys.argv[2].split():
    importlib.import_module(name)
for name, module in sorted(sys.modules.items()):
    if name not in before:
        print(name.partition(".")[0], getattr(module, "__file__", None) or "built in")
"""
LOAD = LOAD.replace(
    "importlib.import_module(sys.argv[2])", "[importlib.import_module(name) for name in sys.argv[2].split()]"
)

NOT_MODULES = {"nki_sim.neuronxcc.nki.typing"}
"""Shipped, and imported under another name once nki_sim.install() stands in for the package."""


def shipped() -> dict[str, Path]:
    found = {}
    for name, path in files_to_ship().items():
        if name.endswith(".py") and not name.endswith("__main__.py"):
            found[name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")] = path
    return found


def test_every_file_of_the_shipment_loads_with_what_a_host_has(tmp_path: Path) -> None:
    """From a copy that holds the shipment only: what is not shipped cannot be imported there."""
    for name, path in files_to_ship().items():
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    names = sorted(set(shipped()) - NOT_MODULES)
    assert any(name.startswith("infra.neuron.") for name in names) and "infra.doctor" in names
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOAD, str(tmp_path), " ".join(names)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    loaded = dict.fromkeys(line.partition(" ")[0] for line in done.stdout.splitlines())
    foreign = set(loaded) - ALLOWED - OURS - set(sys.stdlib_module_names)
    foreign -= {name for name in foreign if name.startswith("_") or name in ("__mp_main__", "cython_runtime")}
    assert not foreign, f"a host would need {sorted(foreign)}"


@pytest.mark.parametrize(
    "module", ["infra.judging.judge", "infra.simulator.trace_worker", "infra.simulator.trace_server", "infra.doctor"]
)
def test_what_a_host_starts_by_name_loads_by_itself(module: str) -> None:
    done = subprocess.run([sys.executable, "-I", "-c", LOAD, str(ROOT), module], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_program_that_a_judge_starts_is_shipped() -> None:
    """By its path, so that no import leads to it."""
    programs = {path.relative_to(ROOT).as_posix() for path in (ROOT / "infra").rglob("*worker.py")}
    here_only = {"infra/prediction/worker.py"}
    assert not programs - here_only - set(files_to_ship())


def test_what_runs_on_a_host_is_no_agent() -> None:
    assert not {
        name for name in shipped() if name.startswith(("accelopt_core.loop", "accelopt_core.model", "infra.llm"))
    }
