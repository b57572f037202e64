"""The house as the tests see it: its files, who imports whom, and in which order its rooms may."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("accelopt_core", "infra", "ka_extensions", "nki_optimizer", "nki_sim")
TOP = ("orchestrator", "config", "bootstrap")


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, of the whole program."""
    found = {name: ROOT / f"{name}.py" for name in TOP}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """The program's own modules that a module imports, anywhere in its text."""
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for name in _imported(node, package):
            known = _longest_known(name)
            if known and known != module:
                found.add(known)
    return frozenset(found)


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*parents, *([node.module] if node.module else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)


def _longest_known(name: str) -> str:
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


def room(module: str) -> str:
    """`infra.ssh.runner` -> `infra.ssh`; a file beside the rooms is one of its own; packages without rooms are one."""
    parts = module.split(".")
    if parts[0] in ("nki_sim", "ka_extensions", "nki_optimizer"):
        return parts[0]
    return ".".join(parts[:2])


def circles() -> list[list[str]]:
    """Sets of files that import each other, however far round (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for other in imports(module):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in path:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            circle = path[path.index(module) :]
            del path[path.index(module) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in modules():
        if module not in number:
            visit(module)
    return found
