"""What a person types to start the program, and where its pages lie: texts name both as in a clone, and say them as
they are here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.runs.default_folders import is_installed

TREE = Path(__file__).resolve().parents[2]
INSTALLED = "nki-optimizer"

_IN_A_CLONE = re.compile(r"(?:python3 )?orchestrator\.py\b|\./run\.sh\b")
_SIMULATOR = re.compile(r"\bpython3? -m nki_sim\b")
_PAGE = re.compile(r"(?<![\w./])(?:docs/[a-z_]+|skills/nki-optimizer/SKILL)\.md\b")
_IN_A_COLUMN = re.compile(rf"^( *(?:{_IN_A_CLONE.pattern})(?:.*?\S)??) {{2,}}(?=\S)", re.MULTILINE)
"""A command that stands before its explanation."""


def program(tree: Path = TREE) -> str:
    """For usage lines and before messages."""
    return INSTALLED if is_installed(tree) else "orchestrator.py"


def started_as(text: str, tree: Path = TREE) -> str:
    """`text` with the command that there is, and pages as files that can be opened; columns stay where they are as far
    as they can."""
    if not is_installed(tree):
        return text

    def in_its_column(line: re.Match[str]) -> str:
        command = _IN_A_CLONE.sub(INSTALLED, line[1])
        return command + " " * max(2, len(line[0]) - len(command))

    commands = _SIMULATOR.sub("nki-sim", _IN_A_CLONE.sub(INSTALLED, _IN_A_COLUMN.sub(in_its_column, text)))
    return _PAGE.sub(lambda page: str(tree / page[0]), commands)


@contextmanager
def raised_as_here(*kinds: type[Exception], tree: Path = TREE) -> Iterator[None]:
    """What is raised inside, of those kinds, says commands and pages as `started_as` does: what a caller of the library
    sees never passes the command line."""
    try:
        yield
    except kinds as error:
        error.args = tuple(started_as(each, tree) if isinstance(each, str) else each for each in error.args)
        raise
