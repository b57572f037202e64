"""Folders a newcomer can read: few files beside the rooms, a word on each folder, docs that name what is there."""

from __future__ import annotations

import ast
import re
import subprocess

import pytest

from tests.house import files
from tests.house.structure import PACKAGES, ROOT, modules

MOST_BESIDE_ROOMS = 14


def folders() -> list[str]:
    """With Python of ours in them, tests left out."""
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:  # installed, not checked out
        names = [str(p.relative_to(ROOT)) for package in PACKAGES for p in (ROOT / package).rglob("*.py")]
    else:
        names = [name for name in listed.stdout.split() if name.endswith(".py") and (ROOT / name).exists()]
    return sorted({name.rpartition("/")[0] for name in names})


@pytest.mark.parametrize("folder", folders())
def test_the_first_line_of_every_folder_says_what_it_is_for(folder: str) -> None:
    text = (ROOT / folder / "__init__.py").read_text(encoding="utf-8")
    said = (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]
    assert text.startswith('"""') and len(said) > 20, f"{folder}/__init__.py: {said!r}"


@pytest.mark.parametrize("folder", folders())
def test_few_files_stand_beside_the_rooms(folder: str) -> None:
    files = sorted({path.name for path in (ROOT / folder).glob("*.py")} - {"__init__.py"})
    assert len(files) <= MOST_BESIDE_ROOMS, files


def test_the_page_of_files_is_the_tree() -> None:
    assert files.PAGE.read_text(encoding="utf-8") == files.page(), "python -m tests.house.files writes it anew"


PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")) + ["README.md", "AGENTS.md"]
OURS = (*PACKAGES, "tests", "benchmarks", "docs", "prompts", "nkibench_seeds", "skills")


@pytest.mark.parametrize("page", PAGES)
def test_the_docs_name_files_that_are_there(page: str) -> None:
    """Paths below one of our folders; a name alone may be a user's or another project's file."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"[\w.-]+(?:/[\w.-]+)+\.(?:py|j2|toml|md|csv|json)\b", text))
    ours = {name for name in named if name.startswith(tuple(f"{folder}/" for folder in OURS))}
    assert not [name for name in sorted(ours) if not (ROOT / name).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_the_docs_link_to_pages_that_are_there(page: str) -> None:
    links = re.findall(r"\]\(([\w./-]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert not [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]


def test_the_table_of_contents_has_every_page_once() -> None:
    """But itself; and the README leads to it."""
    listed = re.findall(r"\| \[[\w.]+\]\(([\w.]+)\) \|", (ROOT / "docs/README.md").read_text(encoding="utf-8"))
    assert sorted([*listed, "README.md"]) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert "](docs/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_short_has_one_picture_and_says_how_long_the_suite_takes() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100 and text.count("![") == 1
    assert re.search(r"^python3 test_agent\.py .*(minutes|hour) on \d+ cores", text, re.MULTILINE)


_DOTTED = re.compile(r"`((?:accelopt_core|infra|ka_extensions|nki_sim)(?:\.\w+)+)`")


@pytest.mark.parametrize("module", sorted(modules()))
def test_the_dotted_names_in_a_text_are_there(module: str) -> None:
    """`infra.runs.event_log.Observers`: a module, and below it a name that its file has."""
    missing = []
    for name in set(_DOTTED.findall(modules()[module].read_text(encoding="utf-8"))):
        known, rest = name, []
        while known not in modules() and "." in known:
            known, _, last = known.rpartition(".")
            rest.insert(0, last)
        there = modules()[known].read_text(encoding="utf-8") if known in modules() else ""
        if not there or (rest and not re.search(rf"\b{rest[0]}\b", there)):
            missing.append(name)
    assert not missing
