"""Kernels as strangers have them: in a package, several in a file, in an older NKI; by way of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.kernels import IN_A_PACKAGE, REFERENCE, SLOW
from tests.e2e.run import orchestrate, orchestrate_here

OLD = '''
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def add_rows(x, y):
    """Rows of y are added to those of x."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows, columns = x.shape
    i_p = nl.arange(128)[:, None]
    i_f = nl.arange(256)[None, :]
    for t in nl.affine_range(rows // 128):
        for j in nl.affine_range(columns // 256):
            a = nl.load(x[t * 128 + i_p, j * 256 + i_f])
            b = nl.load(y[i_p, j * 256 + i_f])  # the same for every t
            nl.store(out[t * 128 + i_p, j * 256 + i_f], value=a + b)
    return out
'''
GATED = REFERENCE + '\nPRESETS = {"small": {"T": 1, "N": 512}}\n'


def files(folder: Path, **texts: str) -> None:
    """`mine.py` and what is named besides; its reference."""
    (folder / "ref.py").write_text(texts.pop("reference", REFERENCE), encoding="utf-8")
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_a_kernel_in_its_package_gets_faster_and_goes_on_whatever_becomes_of_its_neighbours(tmp_path: Path) -> None:
    files(tmp_path)
    for name, text in IN_A_PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    begun = orchestrate(
        "--kernel", "pack/add.py", "--problem", "ref.py", "--provider", "catalogue", "--rounds", "1", folder=tmp_path
    )
    assert begun.status == 0, begun.errors
    assert begun.speedup > 1.05
    neighbours = begun.document("kernel.json")["around"]["neighbours"]
    assert [path for path, _ in neighbours] == ["pack/__init__.py", "pack/moves.py"]
    (tmp_path / "pack/moves.py").write_text("raise ValueError('edited meanwhile')\n", encoding="utf-8")
    (tmp_path / "pack/add.py").unlink()
    again = orchestrate("--resume", "--rounds", "2", folder=tmp_path)
    assert again.status == 0, again.errors
    (tmp_path / "pack/add.py").write_text(IN_A_PACKAGE["pack/add.py"], encoding="utf-8")
    fresh = orchestrate("--kernel", "pack/add.py", "--problem", "ref.py", "--provider", "catalogue", folder=tmp_path)
    assert fresh.status == 3 and "edited meanwhile (pack/moves.py, line 1)" in fresh.errors


@pytest.mark.slow
def test_one_of_several_kernels_is_named_and_keeps_its_name(tmp_path: Path) -> None:
    other = SLOW[SLOW.index("@nki.jit") :].replace("def kernel", "def other")
    files(tmp_path, mine=SLOW.replace("def kernel", "def add_rows") + other)
    words = ("--kernel", "mine.py", "--problem", "ref.py", "--provider", "catalogue", "--rounds", "1")
    unclear = orchestrate(*words, folder=tmp_path)
    assert unclear.status == 2 and "add_rows (line 10), other (line 24); name one with --function" in unclear.errors
    ran = orchestrate(*words, "--function", "add_rows", "--in-place", folder=tmp_path)
    assert ran.status == 0, ran.errors
    kept = (tmp_path / "mine.py").read_text(encoding="utf-8")
    assert "def add_rows" in kept and other in kept, "the other kernel is left alone"
    assert ran.speedup > 1.0 and (tmp_path / "mine.py.bak").exists()


@pytest.mark.slow
def test_an_old_kernel_is_migrated_on_request_and_gets_faster(tmp_path: Path) -> None:
    files(tmp_path, mine=OLD, reference=GATED)
    words = ("--kernel", "mine.py", "--problem", "ref.py", "--provider", "catalogue", "--rounds", "1")
    refused = orchestrate(*words, folder=tmp_path)
    assert refused.status == 2 and refused.errors.count("\n") == 1
    assert "mine.py is written in NKI 0.1 (Beta 1)" in refused.errors and "--migrate" in refused.errors
    ran = orchestrate(*words, "--migrate", "--in-place", folder=tmp_path)
    assert ran.status == 0, ran.errors
    said = " ".join(event.get("message", "") for event in ran.events() if event["event"] == "Notice")
    assert "mine.py was migrated to NKI 0.7; old and new: equal within rounding" in said
    assert ran.document("kernel.json")["presets"] == ["small", "full"], "right at both, so verified at both"
    assert ran.speedup > 1.05
    assert (tmp_path / "mine.py.bak").read_text(encoding="utf-8") == OLD
    assert "the same for every t" in (tmp_path / "mine.py").read_text(encoding="utf-8")


@pytest.mark.slow
def test_shapes_that_a_migrated_kernel_was_not_written_for_are_left_out_and_named(tmp_path: Path) -> None:
    fixed = OLD.replace("rows // 128", "4").replace("columns // 256", "8")
    files(tmp_path, mine=fixed, reference=GATED)
    words = ("--kernel", "mine.py", "--problem", "ref.py", "--provider", "catalogue", "--rounds", "1", "--migrate")
    ran = orchestrate(*words, folder=tmp_path)
    assert ran.status == 0, ran.errors
    assert ran.document("kernel.json")["presets"] == ["full"]
    assert any("not verified at" in event.get("message", "") for event in ran.events())
    (tmp_path / "mine.py").write_text("edited meanwhile\n", encoding="utf-8")
    again = orchestrate("--resume", "--rounds", "2", folder=tmp_path)
    assert again.status == 0, again.errors


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (OLD.replace("value=a + b", "value=a + b, mask=(i_p + i_f < 100)"), "does not migrate by itself"),
        (OLD.replace("a + b)", "nl.no_such(a, b))"), "does not migrate by itself"),
        pytest.param("def kernel(:\n", "cannot be migrated", marks=pytest.mark.slow),
        pytest.param("x = 1\n", "calls no NKI", marks=pytest.mark.slow),
    ],
)
def test_what_needs_a_person_is_listed_before_a_run_begins(tmp_path: Path, kernel: str, said: str) -> None:
    files(tmp_path, mine=kernel)
    ran = orchestrate_here(
        "--kernel", "mine.py", "--problem", "ref.py", "--migrate", "--view", "quiet", folder=tmp_path
    )
    assert ran.status == 2 and said in ran.errors and ran.errors.count("\n") == 1, ran.errors
    assert not list(ran.checkpoints.glob("*"))
