"""A kernel rewritten before its run: what is outdated, what is left as it is, what the process sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelopt_core.task import ShapePreset, Task
from infra.assembly.migrating import Rewritten, outdated, rewrite
from infra.tasks.kernel_file import surroundings_of
from infra.tasks.reference_reader import TaskInvalid
from tests.e2e.kernels import IN_A_PACKAGE, REFERENCE, SLOW
from tests.e2e.test_stranger_kernels import OLD

WHILE = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    for i in nl.dynamic_range(0, 4):
        pass
    return x
"""


@pytest.mark.parametrize(
    ("source", "dialect"),
    [(OLD, "0.1 (Beta 1)"), (WHILE, "0.2 to 0.6"), (SLOW, None), ("def kernel(:", None), ("x = 1", None)],
)
def test_a_kernel_that_the_newest_compiler_does_not_read_is_outdated(source: str, dialect: str | None) -> None:
    found = outdated(source)
    assert (found.dialect if found is not None else None) == dialect
    assert found is None or found.only_in_old_sdks == (source is OLD)


def test_what_a_kernel_imports_of_its_package_is_there_while_it_is_migrated(tmp_path: Path) -> None:
    """Old and new are compared, what does not import is not done, and the folders stay as they were."""
    files = {
        **IN_A_PACKAGE,
        "pack/sizes.py": "WIDE = 256\n",
        "pack/old.py": OLD.replace("language as nl\n", "language as nl\nfrom .sizes import WIDE\n").replace(
            "256", "WIDE"
        ),
        "pack/broken.py": IN_A_PACKAGE["pack/add.py"].replace(".moves", ".stale"),
        "pack/stale.py": IN_A_PACKAGE["pack/moves.py"].replace("import nki.isa", "import neuronxcc.nki.isa"),
    }
    (tmp_path / "pack").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    presets = (ShapePreset("full", (("T", 1),)),)

    def made(name: str) -> Rewritten:
        kernel = tmp_path / "pack" / name
        text = kernel.read_text(encoding="utf-8")
        return rewrite(kernel, text, Task("add", REFERENCE, presets, around=surroundings_of(kernel, text, None)))

    assert "the same stream" in made("add.py").proof
    assert "equal within rounding" in made("old.py").proof
    with pytest.raises(TaskInvalid, match="the new file: .*neuronxcc"):  # its neighbour does not import
        made("broken.py")
    assert not list(tmp_path.rglob("__pycache__"))


def test_the_process_sees_no_key_and_what_the_kernel_prints_is_no_answer(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    spy = OLD + "\n\nimport os\nprint('{\"left\": []}')\nassert 'ANTHROPIC_API_KEY' not in os.environ\n"
    kernel = tmp_path / "mine.py"
    kernel.write_text(spy, encoding="utf-8")
    task = Task("add", REFERENCE, (ShapePreset("full", (("T", 1),)),))
    assert "nisa.dma_copy" in rewrite(kernel, spy, task).source
    with pytest.raises(TaskInvalid, match="could not be migrated"):
        rewrite(kernel, spy, Task("add", "raise SystemExit(3)", task.presets))
