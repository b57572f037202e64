"""One name for each thing, in the field's words: what was retired is not used again, what was doubled is single."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from infra import command_line
from tests.house.structure import PACKAGES, ROOT, modules

RETIRED = {
    "wall": "isolation; of time: deadline, elapsed", "walls": "isolation",
    "room": "mounts; of a number: what it counts", "hung": "mount point", "far side": "remote agent, host",
    "crystal": "predictor", "weather": "remembered predictions, drift", "rival": "incumbent",
    "contest": "paired timing", "standing": "search state, ranking", "detour": "exploration step",
}  # fmt: skip
"""In names of the program, word by word; with what is said instead."""
EARLIER = {"rival", "max-detour"}
"""Names in files of an earlier layout, where those are read: `infra/runs/earlier_layout.py`, `config.py`."""

SINGLE_CLASSES = (
    "Attempt", "Budget", "Limits", "Measurement", "Model", "Outcome", "Settings", "Standing", "Step", "Target", "Try",
)  # fmt: skip
SINGLE_FILES = ("wire.py", "compile_worker.py")


def names_in(path: Path) -> set[str]:
    found = {path.stem}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, (ast.arg, ast.keyword)):
            found.add(node.arg or "")
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
    return found


def retired_in(name: str) -> list[str]:
    """`_MaybeTheWall` and `wall_s` both hold the word `wall`."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    return [word for word in RETIRED if f" {word} " in f" {' '.join(words)} "]


@pytest.mark.parametrize(("name", "found"), [("_MaybeTheWall", ["wall"]), ("FAR_SIDE", ["far side"]), ("so_far", [])])
def test_words_are_found_in_names_of_any_case(name: str, found: list[str]) -> None:
    assert retired_in(name) == found


@pytest.mark.parametrize("module", sorted(modules()))
def test_no_name_uses_a_retired_word(module: str) -> None:
    wrong = {name: retired_in(name) for name in names_in(modules()[module]) if retired_in(name)}
    assert not wrong, "\n".join(f"{name}: say {RETIRED[word]}" for name, found in wrong.items() for word in found)


def test_no_setting_uses_a_retired_word() -> None:
    flags = re.findall(r"--[a-z-]+", command_line.parser().format_help())
    assert len(flags) > 50 and not [flag for flag in flags if retired_in(flag)]


def test_no_record_uses_a_retired_word() -> None:
    """Keys of files that a run leaves are names too."""
    texts = [
        node.value
        for path in modules().values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[a-z_-]+", node.value)
    ]
    assert not {text for text in texts if retired_in(text)} - EARLIER


def test_what_was_doubled_is_single() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            where[path.name].append(str(path.relative_to(ROOT)))
    for module, path in modules().items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                where[node.name].append(module)
    assert not {name: where[name] for name in (*SINGLE_CLASSES, *SINGLE_FILES) if len(where[name]) > 1}
