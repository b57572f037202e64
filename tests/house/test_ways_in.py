"""docs/extending.md: for each thing that is meant to be added to, its files, its line and the test that holds it."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.house.structure import ROOT

PAGE = ROOT / "docs" / "extending.md"
TEXT = PAGE.read_text(encoding="utf-8")
MOST_LINES = 180

_ROW = re.compile(r"^\| \[(?P<what>[\w ]+)\]\(#(?P<at>[\w-]+)\) \| (?P<line>.*) \| `(?P<test>tests/\S+\.py)` \|$", re.M)
WAYS = {row["what"]: row for row in _ROW.finditer(TEXT)}
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))
REGISTERED = re.compile(r"`(?P<name>\w+)` in `(?P<file>[\w/]+\.py)`")


def test_the_page_has_all_seven() -> None:
    assert list(WAYS) == ["provider", "rule", "instruction", "machine", "SDK route", "target", "language"]
    assert [title.lower().replace(" ", "-") for title in SECTIONS] == [row["at"] for row in WAYS.values()]


def test_the_page_can_be_read_at_a_sitting() -> None:
    assert len(TEXT.splitlines()) <= MOST_LINES
    assert not [line for line in TEXT.splitlines() if len(line) > 120 and not line.startswith("|")]


@pytest.mark.parametrize("what", WAYS)
def test_each_says_what_to_do_in_order_and_what_to_leave_alone(what: str) -> None:
    (section,) = (text for title, text in SECTIONS.items() if title.lower().replace(" ", "-") == WAYS[what]["at"])
    steps = [int(number) for number in re.findall(r"^(\d)\. ", section, re.M)]
    assert len(steps) >= 3 and steps == list(range(1, len(steps) + 1))
    assert "**Untouched:**" in section


@pytest.mark.parametrize("what", WAYS)
def test_each_names_its_line_and_its_test(what: str) -> None:
    """Both are there, and the test asks the registry."""
    test = ROOT / WAYS[what]["test"]
    assert test.is_file()
    registered = REGISTERED.search(WAYS[what]["line"])
    if registered is None:  # a target is registered nowhere: it is made
        made = "infra/assembly/targets.py"
        assert f"`{made}`" in WAYS[what]["line"] and f'"{made}"' in test.read_text(encoding="utf-8")
        return
    module = importlib.import_module(registered["file"].removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    assert hasattr(module, registered["name"])
    assert re.search(rf"\b{registered['name']}\b", test.read_text(encoding="utf-8"))


@pytest.mark.parametrize("what", WAYS)
def test_what_is_named_in_code_is_there(what: str) -> None:
    """`NAMES` in capitals, of files of ours that the same step names before them."""
    (section,) = (text for title, text in SECTIONS.items() if title.lower().replace(" ", "-") == WAYS[what]["at"])
    files = {ROOT / name for name in re.findall(r"`([\w/]+\.(?:py|toml|sh))`", section + WAYS[what][0])}
    there = "\n".join(path.read_text(encoding="utf-8") for path in files if path.is_file())
    constants = {name for name in re.findall(r"`(_?[A-Z][A-Z0-9_]+)`", section)} - {"NEURON_CC_FLAGS"}
    assert not [name for name in sorted(constants) if not re.search(rf"\b{name}\b", there)]
