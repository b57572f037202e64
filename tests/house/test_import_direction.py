"""Arrows point inward: orchestrator -> infra -> accelopt_core -> {ka_extensions, nki_sim}."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("accelopt_core", "ka_extensions", "infra", "nki_sim", "config", "orchestrator", "bootstrap")
ALLOWED = {
    "ka_extensions": set(),
    "nki_sim": set(),
    "accelopt_core": {"ka_extensions", "nki_sim"},
    "infra": {"accelopt_core", "ka_extensions", "nki_sim"},
}

SHIPPED = ("accelopt_core", "ka_extensions", "nki_sim", "infra")
"""What a judge imports on the instance: standard library, NumPy and ml_dtypes only."""


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_imports_only_rooms_further_in(room: str) -> None:
    wrong = []
    for path in sorted((ROOT / room).rglob("*.py")):
        for name in imports(path):
            target = name.partition(".")[0]
            if target in ROOMS and target != room and target not in ALLOWED[room]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_judge_needs_only_the_standard_library_and_numpy() -> None:
    """Given the judge's module, everything it imports at load time exists on a bare instance."""
    import subprocess

    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import infra.judging.judge, infra.compile_worker, infra.toolchains;"
        "print('\\n'.join(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code, str(ROOT)], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    foreign = loaded & {"paramiko", "anthropic", "openai", "pydantic", "rich", "jinja2", "libcst", "httpx", "torch"}
    assert not foreign, f"the judge loads {sorted(foreign)}"
