"""The command line, the dialects it tells apart, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nki_sim.__main__ import main
from nki_sim.migrate import proving
from nki_sim.migrate.command import Dialect, dialect_of
from tests.migrate.kernels import beta1

OLD = beta1("out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\nnl.store(out, nl.load(x))\nreturn out\n")
CURRENT = """\
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):
        t = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[16 * i:16 * i + 16, :])
        nisa.dma_copy(dst=out[16 * i:16 * i + 16, :], src=t)
    return out
"""


@pytest.mark.parametrize(
    ("source", "dialect"),
    [
        (OLD, Dialect.BETA1),
        ("y = nisa.activation(op=nl.exp, data=nl.load(x))", Dialect.BETA1),
        ("i = nl.arange(128)", Dialect.BETA1),
        (CURRENT, Dialect.PARSER),
        ("import neuronxcc.nki.typing as nt\n" + CURRENT, Dialect.PARSER),
        (CURRENT + "\ns = nisa.scalar_load(t)\n", Dialect.TRACER),
        ("print(1)", Dialect.UNKNOWN),
    ],
)
def test_dialects(source: str, dialect: Dialect) -> None:
    assert dialect_of(source) is dialect


def test_beta1_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(OLD)
    assert main(["run", str(old), "--shape", "16x32"]) == 1
    assert "is of NKI 0.1 (Beta 1): `nki-sim migrate OLD.py -o NEW.py` rewrites a kernel" in capsys.readouterr().err
    assert main(["migrate", str(old), "-o", str(new), "--shape", "16x32"]) == 0
    assert "nisa.dma_copy" in new.read_text()
    said = capsys.readouterr().err
    assert "equal within rounding, relative difference 0.0e+00" in said and "0.1 (Beta 1) -> 0.7" in said


def test_current_is_compared_by_its_stream_of_instructions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.py"
    old.write_text(CURRENT)
    assert main(["migrate", str(old), "--shape", "32x32"]) == 0
    printed = capsys.readouterr()
    assert "for i in range(2):" in printed.out and "the same stream of 4 instructions" in printed.err


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.py"
    old.write_text(OLD)
    assert main(["migrate", str(old)]) == 2  # no shapes
    assert "--shape" in capsys.readouterr().err
    old.write_text(OLD + OLD.replace("def kernel", "def second"))
    assert main(["migrate", str(old), "--shape", "16x32"]) == 2  # two kernels
    assert "(kernel, second)" in capsys.readouterr().err
    assert main(["migrate", str(old), "--shape", "16x32", "--function", "second"]) == 0
    old.write_text("print(1)\n")
    assert main(["migrate", str(old)]) == 2


def test_programs_that_differ_are_different_whatever_differs() -> None:
    """A slice, an operator, a constant, a count of passes: a proof that does not see them proves nothing."""
    template = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[:, COLUMNS])
    for _ in nl.dynamic_range(PASSES):
        nisa.tensor_scalar(dst=t, data=t, op0=nl.OPERATOR, operand0=NUMBER)
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=t)
    return out
"""

    def traced(**changes: str) -> proving.Traced:
        source = template
        for name, text in {"COLUMNS": "0:64", "PASSES": "3", "OPERATOR": "add", "NUMBER": "1.0", **changes}.items():
            source = source.replace(name, text)
        return proving.traced(source, "kernel", [np.zeros((128, 128), np.float32)], {})

    whole = traced()
    for change in ({"COLUMNS": "64:128"}, {"PASSES": "5"}, {"OPERATOR": "multiply"}, {"NUMBER": "2.0"}):
        assert traced(**change).digest != whole.digest, change
    moved = template.replace("    for _", "\n    # lines and names are no part of it\n    for _").replace("t = ", "t=")
    template = moved
    assert traced().digest == whole.digest


def test_a_device_loop_is_the_same_program_after_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The loop's new call is a line of its own, which moves every later one."""
    old = tmp_path / "old.py"
    old.write_text(CURRENT.replace("nl.affine_range", "nl.dynamic_range").replace("16 * i:16 * i + 16", "0:16"))
    assert main(["migrate", str(old), "--shape", "32x32"]) == 0
    printed = capsys.readouterr()
    assert "nl.fori_loop(0, 2, " in printed.out and "the same stream" in printed.err


BREAKS_ON_IMPORT = {
    "a name that is gone": OLD.replace("\n@nki", "\nclass Sizes:\n    grid = nl.arange(16)\n\n\n@nki"),
    "an error of its own": OLD.replace("\n@nki", "\nassert False, 'never import this'\n\n@nki"),
    "an error of its own, in a newer file": CURRENT.replace("\n@nki", "\nassert False, 'never import this'\n\n@nki"),
    "an end of Python": CURRENT.replace("\n@nki", "\nraise SystemExit(3)\n\n@nki"),
}


@pytest.mark.parametrize("source", BREAKS_ON_IMPORT.values(), ids=BREAKS_ON_IMPORT)
def test_the_file_that_is_written_is_imported_whole(source, tmp_path, capsys) -> None:
    """What cannot be imported is not done, whatever its kernel computes."""
    old = tmp_path / "old.py"
    old.write_text(source)
    assert main(["migrate", str(old), "--shape", "32x32", "--function", "kernel"]) == 1
    assert "needs a person" in capsys.readouterr().err


def test_what_check_rejects_in_the_new_file_is_left_to_a_person(tmp_path, capsys) -> None:
    old = tmp_path / "old.py"
    old.write_text(CURRENT.replace("nl.shared_hbm", "nl.hbm"))
    assert main(["migrate", str(old)]) == 1
    assert "needs a person: [output-memory] line 13 of the new file" in capsys.readouterr().err
