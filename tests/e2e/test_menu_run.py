"""A whole run in which the model only ever points at the menu: kernels are made, and no executor is asked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.kernels import REFERENCE, SLOW
from tests.e2e.run import orchestrate

POINTER = r"""
import json, re, sys
prompt = sys.stdin.read()
menu = prompt.rpartition("## The menu")[2]
row = re.search(r"^\| ([a-z-]+) \| (\S+) \| .* µs \|$", menu, re.M)
if "ONE change" in prompt and row:
    print(json.dumps({"title": "off the menu", "tool": row[1], "site": row[2], "rationale": "it promises most"}))
elif "ONE change" in prompt:
    print("nothing on the menu")
else:
    print(json.dumps({"title": "t", "summary": "s", "diagnosis": "right", "lesson": "l", "avoid": [],
                      "build_on": []}))
"""


@pytest.mark.slow
def test_a_model_that_points_at_the_menu_never_writes_a_kernel(tmp_path: Path) -> None:
    (tmp_path / "add.py").write_text(SLOW, encoding="utf-8")
    (tmp_path / "add_reference.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "pointer.py").write_text(POINTER, encoding="utf-8")
    ran = orchestrate(
        "--kernel", "add.py", "--rounds", "1", "--provider", "command",
        "--model-command", f"{sys.executable} {tmp_path / 'pointer.py'}",
        folder=tmp_path, environment={"NKI_OPT_MENU_SECONDS": "60"},
    )  # fmt: skip
    assert ran.status == 0, ran.errors + ran.output
    assert ran.outcomes() == ["improved"] and ran.speedup > 1.1
    roles = [path.name.split("-")[1] for path in sorted((ran.folder / "exchanges").iterdir())]
    assert "planner.json" in roles and "executor.json" not in roles
    elsewhere = tmp_path / "elsewhere"  # with an empty memory, as the first run had
    elsewhere.mkdir()
    (elsewhere / "add.py").write_text(SLOW, encoding="utf-8")
    (elsewhere / "add_reference.py").write_text(REFERENCE, encoding="utf-8")
    again = orchestrate("--kernel", "add.py", "--rounds", "1", "--provider", "replay", "--replies", str(ran.folder),
                        folder=elsewhere, environment={"NKI_OPT_MENU_SECONDS": "60"})  # fmt: skip
    assert again.status == 0, again.errors + again.output
    assert again.outcomes() == ["improved"]
