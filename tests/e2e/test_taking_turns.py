"""A whole run in which a good model, a poor one and the catalogue take turns, and the next run, which knows of it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kernels import BROKEN, REFERENCE, SLOW
from tests.e2e.run import Ran, orchestrate, orchestrate_here
from tests.llm.wire_server import WireServer

MODELS = {"good-model": 40.0, "poor-model": 44.0}
"""US dollars for a million tokens, in and out."""


def reply_to(body: dict[str, Any]) -> str:
    """The good model makes rows longer, round after round; the poor one's kernels do not compile."""
    content = body["messages"][0]["content"]
    text = content if isinstance(content, str) else "".join(block["text"] for block in content)
    model, number = body["model"], re.search(r"[Rr]ound (\d+)", text)
    if "you are the planner" in text:
        plan = {"title": f"{model} {number[1]}", "technique": "widen-dma-rows", "bottleneck": "memory-bound",
                "expected_gain_us": 3.0, "rationale": "short rows", "details": "", "follows": ["E1"]}  # fmt: skip
        return json.dumps(plan)
    if "# You are the programmer" in text:
        step = re.search(r"STEP = (\d+)", text)
        longer = SLOW.replace("256", str(min(2048, 2 * int(step[1])))) if step else SLOW
        source = longer if model == "good-model" else f"{BROKEN}\nTRY = {text.count('Try')}\n"
        return f"```python\n{source}\nROUND = {number[1]}\n```"
    review = {"diagnosis": "right", "lesson": "rows", "avoid": [], "build_on": []}
    return json.dumps(review | {"title": f"Longer rows {number[1]}", "summary": "Longer rows cost less."})


def run(folder: Path, proposers: str, run_id: str, url: str, *flags: str) -> Ran:
    (folder / "add.py").write_text(SLOW, encoding="utf-8")
    (folder / "add_reference.py").write_text(REFERENCE, encoding="utf-8")
    prices = "".join(
        f'[models."{name}"]\ninput = {usd}\noutput = {usd}\ncached = 0.0\ncache_write = 0.0\n'
        for name, usd in MODELS.items()
    )
    (folder / "prices.toml").write_text(f'as_of = "2026-11-01"\nsources = ["a test"]\n{prices}')
    return orchestrate(
        "--kernel", "add.py", "--provider", "anthropic", "--proposers", proposers, "--prices", "prices.toml",
        "--run-id", run_id, "--max-repairs", "1", *flags, folder=folder,
        environment={"ANTHROPIC_API_KEY": "test-key", "ANTHROPIC_BASE_URL": url},
    )  # fmt: skip


@pytest.mark.slow  # ten rounds with a poor model among those that take turns
def test_the_good_model_and_the_catalogue_win_and_the_poor_model_is_asked_now_and_then(tmp_path: Path) -> None:
    with WireServer(reply_to) as server:
        ran = run(tmp_path, "poor-model,good-model", "first", server.url, "--rounds", "8", "--patience", "3")
    assert ran.status == 0, ran.errors + ran.output
    decided = [attempt for attempt in ran.attempts() if attempt["decision"]]
    turns = [attempt["proposer"] for attempt in decided]
    assert set(turns) == {"anthropic:good-model", "anthropic:poor-model"}, "no run gives up before each was asked"
    won = [attempt["proposer"] for attempt in decided if attempt["outcome"] == "improved"]
    assert set(won) == {"anthropic:good-model"} and ran.speedup > 1.8
    for attempt in ran.attempts():
        if attempt["candidate"]:
            assert ("tensor_plus" in attempt["candidate"]["source"]) == (attempt["proposer"] == "anthropic:poor-model")
    usage = [json.loads(line) for line in (ran.folder / "usage.jsonl").read_text().splitlines()]
    for name in ("good-model", "poor-model"):
        paid = sum(entry["cost_usd"] for entry in usage if entry["model"] == name)
        filed = sum(attempt["spent"]["usd"] for attempt in decided if attempt["proposer"] == f"anthropic:{name}")
        assert filed == pytest.approx(paid) and paid > 0
        assert {entry["proposer"] for entry in usage if entry["model"] == name} == {f"anthropic:{name}"}
    good, poor = (
        next(line for line in ran.output.splitlines() if line.startswith(f"anthropic:{name} "))
        for name in ("good-model", "poor-model")
    )
    assert good.split()[1:3] == [str(turns.count("anthropic:good-model")), str(len(won))]
    assert poor.split()[1:4] == [str(turns.count("anthropic:poor-model")), "0", "1.00x"]
    assert re.search(r"^good-model +\d+ +0 +[\d,]+ in, [\d,]+ out +\$\d", ran.output, re.M)
    assert re.search(r'memory +"Longer rows \d" helped \d of \d', ran.output)
    (known,) = json.loads((tmp_path / "memory" / "rewrites.proposers.json").read_text())["runs"]
    assert known["run"] == "first" and {each["proposer"] for each in known["tracks"]} == set(turns)
    assert sum(each["track"]["pulls"] for each in known["tracks"]) == len(decided)
    with WireServer(reply_to) as server:
        again = run(tmp_path, "poor-model,good-model,catalogue", "second", server.url, "--rounds", "2")
    assert again.status == 0, again.errors + again.output
    first = json.loads((again.folder / "turns.jsonl").read_text().splitlines()[0])
    thought = {draw["proposer"]: draw for draw in first["draws"]}
    assert first["proposer"] == "catalogue", "it wins as often, and asks for no dollars"
    assert thought["anthropic:good-model"]["gain"] > thought["catalogue"]["gain"], "what the first run showed"
    names = [run["run"] for run in json.loads((tmp_path / "memory" / "rewrites.proposers.json").read_text())["runs"]]
    assert names == ["first", "second"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--proposers", "catalogue"), "name two or more"),
        (("--proposers", "catalogue,nobody"), "'nobody' is neither catalogue nor a provider"),
        (("--proposers", "catalogue,catalogue"), "named twice"),
        (("--proposers", "catalogue,anthropic:"), "names no model"),
        (("--proposers", "catalogue,anthropic", "--model", "m"), "leave --model away"),
        (("--proposers", "catalogue,command"), "command needs --model-command as well"),
    ],
)
def test_what_cannot_take_turns_is_said_in_one_line(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    ran = orchestrate_here(*flags, folder=tmp_path)
    assert ran.status == 2 and said in ran.errors and len(ran.errors.strip().splitlines()) == 1, ran.errors


@pytest.mark.slow
def test_programs_may_take_turns_each_under_its_own_command(tmp_path: Path) -> None:
    script = tmp_path / "player.py"
    script.write_text(
        f"import sys, json\nsys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})\n"
        "from tests.e2e.test_taking_turns import reply_to\n"
        "text = sys.stdin.read()\ntext = text[text.index('# Round'):] if '# Round' in text else text\n"
        "print(reply_to({'model': sys.argv[1], 'messages': [{'content': text}]}))\n"
    )
    (tmp_path / "add.py").write_text(SLOW, encoding="utf-8")
    (tmp_path / "add_reference.py").write_text(REFERENCE, encoding="utf-8")
    names = [f"command:{sys.executable} {script} {which}" for which in ("good-model", "poor-model")]
    ran = orchestrate("--kernel", "add.py", "--proposers", ",".join(names), "--rounds", "2", "--max-repairs", "0",
                      folder=tmp_path)  # fmt: skip
    assert ran.status == 0, ran.errors + ran.output
    turns = {attempt["proposer"] for attempt in ran.attempts()}
    assert turns <= set(names) and turns
    assert ran.output.count("its price is unknown, so it counts as free but for its time") == 2
