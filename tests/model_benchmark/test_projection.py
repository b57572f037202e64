"""Amdahl's law on a table of kernels; a table that says too little, or too much, is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infra.model_benchmark.projection import KernelFile, KernelUse, ModelTable, projection, read_table
from infra.toml_files import BadToml

USE = KernelUse("mm", KernelFile(Path("a.py")), KernelFile(Path("b.py")), ("128x128",), (), 48, 0.5)


def test_what_no_kernel_covers_stays_as_it_is() -> None:
    found = projection(ModelTable("m", 1000.0, (USE, replace(USE, share=0.25))), [(10.0, 5.0), (8.0, 2.0)])
    assert found.speedup == 1 / (0.25 + 0.25 + 0.25 / 4) and found.covered == 0.75
    assert found.projected_step_us == 562.5
    assert [row.saved for row in found.kernels] == [0.25, 0.1875]
    assert (found.tokens_per_s, found.projected_tokens_per_s) == (None, None)


def test_a_kernel_that_became_slower_costs_and_a_step_without_a_time_has_only_a_speed_up() -> None:
    found = projection(ModelTable("m", None, (USE,)), [(10.0, 20.0)])
    assert found.speedup == 1 / 1.5 and found.kernels[0].saved == -0.5
    assert (found.step_us, found.projected_step_us) == (None, None)


ROW = 'before = "a.py"\nafter = "/b.py:mm"\nshapes = ["128x512:float32"]\nshare = 0.5\n'


def test_a_table_is_read_with_its_paths_beside_it(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(
        f"[model]\nstep_us = 12.5\ntokens_per_step = 8\n[[kernel]]\n{ROW}calls = 3\nconstants = [1e-6]\n"
    )
    table = read_table(tmp_path / "t.toml")
    use = KernelUse(
        "a", KernelFile(tmp_path / "a.py"), KernelFile(Path("/b.py"), "mm"), ("128x512:float32",), (1e-6,), 3, 0.5
    )
    assert table == ModelTable("t", 12.5, (use,), 8.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"\[\[kernel\]\] for each"),
        ("[kernel]\n" + ROW, r"\[\[kernel\]\] for each"),
        ("[[kernel]]\n" + ROW.replace("share = 0.5", ""), "1 has no share"),
        ("[[kernel]]\n" + ROW.replace("0.5", "1.5"), "a fraction of 1"),
        ("[[kernel]]\n" + ROW.replace("0.5", "-1"), "not a number above 0"),
        ("[[kernel]]\n" + ROW.replace("0.5", "nan"), "not a number above 0"),
        ("[[kernel]]\n" + ROW + "[[kernel]]\n" + ROW + "[[kernel]]\n" + ROW, "add up to 1.5"),
        ("[[kernel]]\n" + ROW + "calls = 0\n", "calls is 0, not a count"),
        ("[[kernel]]\n" + ROW.replace('["128x512:float32"]', "128"), "shapes are a list"),
        ("[[kernel]]\n" + ROW + 'constants = ["x"]\n', "constants are a list of numbers"),
        ("[[kernel]]\n" + ROW + "constants = [true]\n", "constants are a list of numbers"),
        ("[[kernel]]\n" + ROW + "constants = [nan]\n", "constants are a list of numbers"),
        ("[[kernel]]\n" + ROW.replace("0.5", "1" + 400 * "0"), "not a number above 0"),
        ("[model]\nstep_us = 1%s\n[[kernel]]\n" % (400 * "0") + ROW, "not a number above 0"),
        ("[model]\ntokens_per_step = 0\n[[kernel]]\n" + ROW, "tokens_per_step is 0, not a number above 0"),
        ("[[kernel]]\n" + ROW + "cals = 3\n", "no setting cals; known: name"),
        ("[model]\nstep_ms = 3\n[[kernel]]\n" + ROW, "no setting step_ms"),
        ("[[kernel]\n", "correct it"),
    ],
)
def test_a_table_that_says_too_little_or_too_much_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(BadToml, match=said):
        read_table(tmp_path / "t.toml")
