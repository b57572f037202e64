"""Each option of the command line is written down for a person, or is shown to work by a test."""

from __future__ import annotations

import re

from config import GROUPS
from infra.command_line import OWN_FLAGS
from infra.settings_reader import specs
from tests.house.structure import ROOT

PAGES = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "plugins").rglob("*.md"))
TESTED = (*(ROOT / "tests").rglob("*.py"), *(ROOT / "plugins").rglob("test_*.py"))
"""A plugin that is installed brings options of its own."""
TESTS = tuple(path for path in TESTED if path.name != "test_every_option.py")


def test_each_option_is_on_a_page_or_in_a_test() -> None:
    said = "\n".join(path.read_text(encoding="utf-8") for path in (*PAGES, *TESTS))
    named = set(re.findall(r"--[a-z][a-z-]*[a-z]", said))
    options = [*(spec.flag for kind in GROUPS.values() for spec in specs(kind)), *OWN_FLAGS]
    assert [flag for flag in options if not named & {flag, flag.replace("--", "--no-", 1)}] == []
