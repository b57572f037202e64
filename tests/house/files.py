"""The page of all files: `python -m tests.house.files` writes docs/files.md anew."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.house.structure import ROOT, TOP, modules

PAGE = ROOT / "docs/files.md"
_HEAD = """# Every file, by its first line

Made by `python -m tests.house.files`; a test holds it against the tree. [architecture.md](architecture.md) says how
they belong together.
"""


def page() -> str:
    """A list for each folder, and its files."""
    lines = [_HEAD, "## Beside the folders", ""]
    lines += [f"- `{name}.py` {_first_line(ROOT / f'{name}.py')}" for name in TOP]
    for path in sorted(modules().values(), key=lambda path: (path.parent, path.name)):
        name = path.relative_to(ROOT)
        if name.name == "__init__.py":
            lines += ["", f"## {name.parent}", "", _first_line(path), ""]
        elif len(name.parts) > 1:
            lines.append(f"- `{name.name}` {_first_line(path)}")
    return "\n".join(lines) + "\n"


def _first_line(path: Path) -> str:
    """The docstring's first sentence."""
    paragraph = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    return re.split(r"(?<=[.:;])\s*\n", paragraph)[0].replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
