"""The command line, the dialects it tells apart, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nki_sim.__main__ import main
from nki_sim.migrate.dialect import Dialect, dialect_of
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


def test_what_is_left_is_listed_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.py"
    old.write_text(OLD.replace("nl.load(x)", "nl.floor(nl.load(x))"))
    assert main(["migrate", str(old), "--shape", "16x32"]) == 1
    said = capsys.readouterr().err
    assert "line 9: needs a person: [function]" in said and "not done: 1 places" in said
