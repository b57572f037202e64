"""One kernel for a table of shapes, as a user asks for it; also after `kill -9`."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import orchestrator
from infra.commands import joined_kernel
from infra.runs.run_folder import RunFolder
from tests.e2e.run import KEYS, ROOT, orchestrate
from tests.infra.test_documents import checked
from tests.processes import PATIENCE_S, eventually

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

STEP = 128
TUNABLES = {"STEP": (128, 256, 512, 1024)}


def height_of(rows, start):
    return min(128, rows - start)


@nki.jit
def kernel(x, y):
    rows, n = x.shape
    assert n % 4 == 0, "whole groups of four"
    out = nl.ndarray((rows, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for t in range((rows + 127) // 128):
        height = height_of(rows, t * 128)
        for j in range((n + STEP - 1) // STEP):
            width = min(STEP, n - j * STEP)
            a = nl.ndarray((height, width), dtype=x.dtype, buffer=nl.sbuf)
            b = nl.ndarray((height, width), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=a, src=x[t * 128 : t * 128 + height, j * STEP : j * STEP + width])
            nisa.dma_copy(dst=b, src=y[t * 128 : t * 128 + height, j * STEP : j * STEP + width])
            c = nl.ndarray((height, width), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)
            nisa.dma_copy(dst=out[t * 128 : t * 128 + height, j * STEP : j * STEP + width], src=c)
    return out
"""
"""Rows and columns that are left over are done in narrower tiles."""

REFERENCE = """
import numpy as np

P, N = 128, 2048


def get_inputs():
    return [np.random.normal(size=(P, N)).astype(np.float32), np.random.normal(size=(P, N)).astype(np.float32)]


def forward(x, y):
    return x + y


def transform_to_nki_inputs(inputs):
    return inputs


def transform_nki_outputs(result, reference):
    return [np.reshape(result, reference.shape)]
"""

OF_MODEL = """
[model]
step_us = 100
[[kernel]]
before = "{before}"
after = "best.py"
values = {{N = 2048}}
shapes = ["{shape}", "128x2048"]
share = 0.5
"""

FEW_SHAPES = """
[[shape]]
P = 150
N = 508
calls = 2
name = "tails"

[[shape]]
P = 64
N = 64
calls = 1
name = "small-one"
"""
SHAPES = f"""
[[shape]]
P = 128
N = 1024
calls = 10
{FEW_SHAPES}"""

MODEL = r"""
import json, pathlib, re, sys, time
prompt = sys.stdin.read()
asked = pathlib.Path(__file__).with_name("asked")
with asked.open("a") as lines:
    lines.write("x")
if "ONE change" in prompt:
    print(json.dumps({"title": "wider rows", "technique": "widen-dma-rows", "bottleneck": "memory-bound",
                      "expected_gain_us": 3.0, "rationale": "short rows", "details": "change STEP"}))
elif "```python block" in prompt:
    step = 1024 if re.search(r"\b1024\b(?!\))", prompt.replace("512, 1024", "")) else 512
    source = pathlib.Path(__file__).with_name("k.py").read_text().replace("STEP = 128", f"STEP = {step}")
    print("```python\n" + source + "```")
else:
    print(json.dumps({"title": "t", "summary": "s", "diagnosis": "right", "lesson": "l", "avoid": [], "build_on": []}))
"""

FLAGS = ("--kernel", "k.py", "--shapes", "shapes.toml", "--run-id", "set", "--rounds", "1", "--seeds", "3")


def world(folder: Path, shapes: str = SHAPES) -> tuple[str, ...]:
    """The user's files, and the flags that name a model which knows one change."""
    for name, text in (("k.py", KERNEL), ("k_ref.py", REFERENCE), ("shapes.toml", shapes), ("model.py", MODEL)):
        (folder / name).write_text(text, encoding="utf-8")
    return ("--provider", "command", "--model-command", shlex.join([sys.executable, str(folder / "model.py")]))


def document(folder: Path) -> dict:
    return checked(orchestrate("show", "set", "--json", folder=folder).output)


def check_complete(folder: Path) -> dict:
    """What any set must hold to, whatever came in between."""
    told = document(folder)
    assert told["complete"] and not told["missing"]
    assert [row["name"] for row in told["rows"]][-2:] == ["tails", "small-one"]
    for row in told["rows"]:
        assert row["after_us"] <= row["input_us"] and row["verified"]
        assert row["after_us"] == pytest.approx(row["alone_us"], rel=0.02)
    *others, small = told["rows"]
    assert all(row["after_us"] < 0.9 * row["input_us"] and row["variant"] for row in others)
    assert small["variant"] == 0 and small["after_us"] == small["input_us"]
    assert told["kept_percent"] >= 90 and told["speedup"] > 1.1
    assert any("verified" in each["takes"] for each in told["between"])
    source = (folder / "checkpoints/set/best_kernel.py").read_text(encoding="utf-8")
    assert "x.shape == (150, 508)" in source and "def kernel_as_given(x, y):" in source
    assert source.count("whole groups of four") == 1 + told["variants"]
    assert (folder / "k.py").read_text(encoding="utf-8") == KERNEL
    return told


def here(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """In this process and folder: exit code, output, errors."""
    capsys.readouterr()
    status = orchestrator.main([*arguments, "--checkpoints", "checkpoints", "--memory", "memory/rewrites.json"])
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for name in [*KEYS, *(each for each in os.environ if each.startswith("NKI_OPT"))]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NKI_OPT_MENU_SECONDS", "0")
    monkeypatch.setenv("NKI_OPT_EXTRA_SEEDS", "1")
    return tmp_path


def test_a_set_is_optimized_shown_and_gone_on_with(folder, capsys, monkeypatch) -> None:
    monkeypatch.setattr(joined_kernel, "MOST_BETWEEN", 1)  # each takes seconds, and the tests below have more
    tmp_path, model = folder, world(folder, FEW_SHAPES)
    status, output, errors = here(*FLAGS, *model, "--json", capsys=capsys)
    assert status == 0, errors
    told = check_complete(tmp_path)
    assert checked(output) == told
    assert "one kernel" in errors and "weighted" in errors
    asked = (tmp_path / "asked").read_text()
    status, shown, _ = here("show", "set", capsys=capsys)
    assert status == 0 and re.search(r"tails +2 .* variant 1\b", shown), shown
    assert re.search(r"small-one .* 1\.00x +the input kernel", shown)
    status, again, _ = here("--resume", "--json", *model, capsys=capsys)
    assert status == 0 and checked(again) == told
    assert (tmp_path / "asked").read_text() == asked, "nothing was done anew"
    assert [path.name for path in sorted((tmp_path / "checkpoints").glob("set.*"))] == ["set.small-one", "set.tails"]
    (tmp_path / "other.toml").write_text(SHAPES, encoding="utf-8")
    status, _, errors = here("--resume", "set", "--shapes", "other.toml", *model, capsys=capsys)
    assert status == 2 and "not what they were when set set began" in errors
    (tmp_path / "k.py").write_text(KERNEL.replace("STEP = 128", "STEP = 256"), encoding="utf-8")
    status, _, errors = here("--resume", "set", *model, capsys=capsys)
    assert status == 2 and "not what they were when set set began" in errors
    status, _, errors = here("--run-id", "set", *FLAGS[:4], *model, capsys=capsys)
    assert status == 2 and "is there already" in errors


def started(folder: Path, model: tuple[str, ...]) -> subprocess.Popen[bytes]:
    clean = {name: value for name, value in os.environ.items() if name not in KEYS and not name.startswith("NKI_OPT")}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "orchestrator.py"), *FLAGS, *model, "--checkpoints", "checkpoints",
         "--memory", "memory/rewrites.json"],
        cwd=folder, env={**clean, "NKI_OPT_MENU_SECONDS": "0", "COLUMNS": "120"}, stdin=subprocess.DEVNULL,
        stdout=(folder / "said").open("w"), stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def finished(folder: Path, shape: str) -> bool:
    run = RunFolder(folder / "checkpoints" / f"set.{shape}")
    return (run.path / "manifest.json").exists() and run.manifest().status == "finished"


KILLED_WHEN: dict[str, Callable[[Path], bool]] = {
    "a run is under way": lambda folder: finished(folder, "P128-N1024") and (folder / "checkpoints/set.tails").exists(),
    "the joined kernel is being verified": lambda folder: any((folder / "checkpoints/set/evaluations").glob("*.json")),
}


@pytest.mark.slow
@pytest.mark.parametrize("when", KILLED_WHEN)
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT], ids=lambda by: by.name)
def test_a_set_that_was_killed_goes_on_where_it_was(tmp_path: Path, when: str, by: signal.Signals) -> None:
    model = world(tmp_path)
    process = started(tmp_path, model)
    try:
        assert eventually(lambda: process.poll() is not None or KILLED_WHEN[when](tmp_path)) and process.poll() is None
    finally:
        os.killpg(process.pid, by)
        assert process.wait(timeout=PATIENCE_S) == (5 if by is signal.SIGINT else -by)
    if by is signal.SIGINT:
        assert "not made yet" in (tmp_path / "said").read_text(encoding="utf-8"), "the table of what there is"
    assert not (tmp_path / "checkpoints/set/result.json").exists()
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "checkpoints").glob("*/evaluations/*.json")}
    asked = (tmp_path / "asked").read_text()
    partly = document(tmp_path)
    assert not partly["complete"] and partly["best_kernel"] is None and partly["rows"]
    ran = orchestrate("--resume", "set", "--view", "quiet", *model, folder=tmp_path)
    assert ran.status == 0, ran.errors
    check_complete(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in done} == done, "no evaluation was made anew"
    if "verified" in when:
        assert (tmp_path / "asked").read_text() == asked
    joined = tmp_path / "joined.py"
    joined.write_bytes((tmp_path / "checkpoints/set/best_kernel.py").read_bytes())
    evaluated = orchestrate("evaluate", "joined.py", "--problem", "k_ref.py", "--shapes", "shapes.toml", "--preset",
                            "tails", folder=tmp_path)  # fmt: skip
    assert evaluated.status == 0, "it is a kernel like any other"


@pytest.mark.slow
def test_only_one_shape_of_a_table_is_an_ordinary_run(tmp_path: Path) -> None:
    ran = orchestrate(*FLAGS, *world(tmp_path), "--preset", "tails", folder=tmp_path)
    assert ran.status == 0, ran.errors
    assert ran.folder.name == "set" and ran.document("manifest.json")["shape"] == "P150 N508"


@pytest.mark.parametrize(
    ("flags", "changes", "said"),
    [
        ((), {"shapes": OF_MODEL.format(before="k.py", shape="128x512")}, "1: at these values the reference makes"),
        (("--suite", "nkibench"), {}, "leave one of"),
        (("--preset", "wide"), {}, "has no 'wide', only P128-N1024, tails, small-one"),
        (
            (),
            {"kernel": KERNEL.replace("import nki.isa as nisa", "from nki.isa import *")},
            "nothing can be joined to it",
        ),
        (("--resume", "gone"), {}, "'gone' is no set of shapes"),
        (("--resume",), {}, "no set of shapes in"),
        (("--run-id", "a" * 95), {}, ".P128-N1024' would be one of its runs, and is longer than 100 characters"),
        (("--run-id", "theirs"), {}, "theirs.tails is there already, and no run of this set"),
        (
            (),
            {"reference": REFERENCE + "HEADS = 4\n", "shapes": "[[shape]]\nN = 64\n[[shape]]\nN = 64\nHEADS = 2\n"},
            "N64 and N64-HEADS2 give the kernel the same arguments",
        ),
    ],
)
def test_what_cannot_be_a_set_is_refused_in_one_line(folder, flags, changes, said, capsys) -> None:
    world(folder, changes.get("shapes", SHAPES))
    (folder / "k.py").write_text(changes.get("kernel", KERNEL), encoding="utf-8")
    (folder / "k_ref.py").write_text(changes.get("reference", REFERENCE), encoding="utf-8")
    if "theirs" in flags:
        (folder / "checkpoints/theirs.tails").mkdir(parents=True)
        (folder / "checkpoints/theirs.tails/manifest.json").write_text("{}", encoding="utf-8")
    given = ("--kernel", "k.py", "--shapes", "shapes.toml", "--provider", "catalogue")
    status, _, errors = here(*given, *flags, capsys=capsys)
    assert status == 2 and said in errors and errors.count("\n") == 1, errors
    assert not list((folder / "checkpoints").glob("*/set.json"))


@pytest.mark.slow
def test_a_shape_that_the_input_kernel_refuses_is_said_and_the_others_go_on(tmp_path: Path) -> None:
    model = world(tmp_path)
    shapes = "[[shape]]\nP = 128\nN = 1024\n[[shape]]\nP = 128\nN = 66\n"
    (tmp_path / "shapes.toml").write_text(shapes, encoding="utf-8")
    ran = orchestrate(*FLAGS, *model, "--json", folder=tmp_path)
    assert ran.status == 3, ran.errors
    told = checked(ran.output)
    assert "whole groups of four" in told["missing"]["P128-N66"] and [r["variant"] for r in told["rows"]] == [1]


@pytest.mark.slow
def test_the_joined_kernel_may_take_the_place_of_the_users_file(tmp_path: Path) -> None:
    model = world(tmp_path)
    (tmp_path / "shapes.toml").write_text("[[shape]]\nP = 128\nN = 1024\n", encoding="utf-8")
    ran = orchestrate(*FLAGS, *model, "--in-place", folder=tmp_path)
    assert ran.status == 0, ran.errors
    assert (tmp_path / "k.py.bak").read_text(encoding="utf-8") == KERNEL
    assert (tmp_path / "k.py").read_bytes() == (tmp_path / "checkpoints/set/best_kernel.py").read_bytes()
    assert "def kernel_v1" in (tmp_path / "k.py").read_text(encoding="utf-8")
    result = tmp_path / "checkpoints/set/result.json"
    told = json.loads(result.read_text())
    assert told["rows"][0]["variant"] == 1
    again = orchestrate("--resume", "set", *model, folder=tmp_path)
    assert again.status == 0 and "now holds" not in again.output, again.errors
    (tmp_path / "k.py").write_text(KERNEL, encoding="utf-8")
    killed_before_that = orchestrate("--resume", "set", *model, folder=tmp_path)
    assert killed_before_that.status == 0 and "k.py now holds the joined kernel" in killed_before_that.output
    assert "def kernel_v1" in (tmp_path / "k.py").read_text(encoding="utf-8")
    told["rows"][0]["alone_us"] *= 2  # as if its run had found a faster one since
    result.write_text(json.dumps(told), encoding="utf-8")
    over = orchestrate("--resume", "set", *model, folder=tmp_path)
    assert over.status == 2 and "put them back" in over.errors
    (tmp_path / "k.py").write_text(KERNEL, encoding="utf-8")
    anew = orchestrate("--resume", "set", *model, folder=tmp_path)
    assert anew.status == 0 and "pricing 2 kernels" in anew.output, anew.errors
    assert json.loads(result.read_text())["rows"][0]["alone_us"] == told["rows"][0]["alone_us"] / 2
