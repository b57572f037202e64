"""A second program plays the model over a whole run, and knows nothing but the request files."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

from tests.e2e.kernels import REFERENCE, SLOW
from tests.e2e.run import orchestrate


class FreshReader:
    """Answers requests from their own text alone: the kernel it improves is the one in the file, not one it knows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.answered: list[str] = []
        self.requests: dict[str, str] = {}

    def __enter__(self) -> FreshReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            for path in sorted(self._folder.glob("*.request.md")):
                text = path.read_text(encoding="utf-8")
                named = re.search(r"to the file (\S+) in this folder", text)
                assert named is not None, "a request says where its reply belongs"
                reply = self._folder / named.group(1)
                if not reply.exists():
                    role = re.search(r"You are the (\w+) of this run", text)
                    assert role is not None, "a request says whom it is for"
                    self.answered.append(role.group(1))
                    self.requests[path.name] = text
                    part = reply.with_suffix(".half")
                    part.write_text(self._answer(role.group(1), text), encoding="utf-8")
                    part.rename(reply)

    def _answer(self, role: str, text: str) -> str:
        if role == "planner":
            fields = ("title", "technique", "bottleneck", "expected_gain_us", "rationale", "details")
            assert all(f'"{field}"' in text or f"`{field}`" in text or field in text for field in fields)
            step = re.search(r"STEP = (\d+)", text)
            assert step is not None, "the planner sees the kernel"
            now = int(step.group(1))
            wanted = 4 * now if now == 256 else now // 2
            return json.dumps({
                "title": f"rows of {wanted} in place of {now}", "technique": "widen-dma-rows",
                "bottleneck": "memory-bound", "expected_gain_us": 1.0, "rationale": "another number of descriptors",
                "details": f"set STEP to {wanted}",
            })  # fmt: skip
        if role == "executor":
            kernel = re.search(r"## The current kernel[^\n]*\s+```python\n(.*?)```", text, re.S)
            wanted = re.search(r"set STEP to (\d+)", text)
            assert kernel is not None and wanted is not None, "the executor sees kernel and plan"
            return "```python\n" + re.sub(r"STEP = \d+", f"STEP = {wanted.group(1)}", kernel.group(1)) + "```\n"
        review = {"diagnosis": "right", "lesson": "row length mattered", "avoid": [], "build_on": ["rows"]}
        return json.dumps(review | {"title": "Longer DMA rows", "summary": "Twice the row, fewer descriptors."})


def test_a_program_that_knows_only_the_request_files_plays_every_role(tmp_path: Path) -> None:
    (tmp_path / "add.py").write_text(SLOW, encoding="utf-8")
    (tmp_path / "add_reference.py").write_text(REFERENCE, encoding="utf-8")
    mailbox = tmp_path / "mailbox"
    mailbox.mkdir()
    with FreshReader(mailbox) as reader:
        ran = orchestrate("--kernel", "add.py", "--rounds", "2", "--provider", "mailbox", "--mailbox", str(mailbox),
                          folder=tmp_path, environment={"NKI_OPT_MENU_SECONDS": "60"})  # fmt: skip
    assert ran.status == 0, ran.errors + ran.output
    # Rows half as long need twice the descriptors: slower, which is filed without a model.
    assert ran.outcomes() == ["improved", "kept"] and ran.speedup > 1.1
    assert reader.answered == ["planner", "executor", "reflexion", "planner", "executor", "reflexion"]
    for name, text in reader.requests.items():
        assert str(tmp_path) not in text.split("-->", 1)[1], f"{name} points outside itself"
    plan = next(text for name, text in reader.requests.items() if "-planner-" in name)
    for needed in ("Trainium2", "JSON", "relative L2", "def forward", "µs", "the kernel gets what"):
        assert needed in plan
    assert re.search(r"Lines that keep engines busy .*: \d+ dma ", plan)
    # What it wrote by hand in the first round has the menu that anyone's kernel of that text has.
    again = next(text for name, text in sorted(reader.requests.items(), reverse=True) if "-planner-" in name)
    (tmp_path / "add.py").write_text((ran.folder / "candidates" / "r001t1.py").read_text(encoding="utf-8"), "utf-8")
    alone = orchestrate("menu", "add.py", "--json", folder=tmp_path)
    assert alone.status == 0, alone.errors
    listed = {(each["tool"], each["site"]) for each in json.loads(alone.output)["changes"]}
    shown = set(re.findall(r"^\| ([a-z-]+) \| ([^|]+) \| .* µs \|$", again.rpartition("## The menu")[2], re.M))
    assert listed and shown >= listed
    code = next(text for name, text in reader.requests.items() if "-executor-" in name)
    for needed in ("API of NKI", "dma_copy", "2e-05", "float32-faithful", "def forward"):
        assert needed in code
