"""What a kernel's file is loaded with: which of its functions is the kernel, and the user's files that it imports.

Read as text: nothing of it is executed here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from accelopt_core.candidate import parsed
from accelopt_core.task import ENTRY_POINTS, Surroundings
from infra.tasks.reference_reader import TaskInvalid
from nki_sim.migrate.command import kernels_of

MOST_FILES = 1000
MOST_BYTES = 8 << 20
"""Of all neighbours together: they travel with every job."""

_NOT_NEIGHBOURS = {*sys.stdlib_module_names, "nki", "neuronxcc", "numpy"}
"""What a kernel means by these is never a file beside it."""


def surroundings_of(kernel: Path, source: str, function: str | None) -> Surroundings:
    """Raises TaskInvalid where the file holds several kernels, or none of that name, or more neighbours than travel.

    `function`: which the user named. Text that is not Python is left to the compiler's own words.
    """
    try:
        tree = parsed(source, str(kernel))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Surroundings(function or "")
    chosen = _chosen(kernel, source, tree, function)
    path = kernel.resolve()
    root, module = _package(path, tree)
    neighbours = _neighbours(path, tree, root)
    return Surroundings(chosen, module, neighbours) if neighbours else Surroundings(chosen)


# --- which function -------------------------------------------------------------------------------


def _chosen(kernel: Path, source: str, tree: ast.Module, wanted: str | None) -> str:
    """Empty where the kernel is found by ENTRY_POINTS."""
    lines = {name: node.lineno for node in tree.body for name in _bound(node)}
    default = next((name for name in ENTRY_POINTS if name in lines), "")
    marked = kernels_of(source)
    listed = ", ".join(f"{name} (line {lines.get(name, 1)})" for name in marked) or "none that nki.jit decorates"
    if wanted is not None:
        if wanted not in lines:
            raise TaskInvalid(f"{kernel} defines no {wanted} at its top level; its kernels are: {listed}")
        return "" if wanted == default else wanted
    if default or not marked:
        return ""
    if len(marked) > 1:
        raise TaskInvalid(f"{kernel} has {len(marked)} kernels: {listed}; name one with --function")
    return marked[0]


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


# --- which files ----------------------------------------------------------------------------------


def _package(kernel: Path, tree: ast.Module) -> tuple[Path, str]:
    """The folder that the file's package lies in, and the name by which it is imported from there."""
    levels = max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)
    folder, names = kernel.parent, [kernel.stem]
    while len(names) <= levels or (folder / "__init__.py").is_file():
        if not folder.name.isidentifier():
            if len(names) <= levels:
                raise TaskInvalid(f"{kernel} imports its neighbours, but {folder} has no name that Python can import")
            break
        names.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(names)


def _neighbours(kernel: Path, tree: ast.Module, root: Path) -> tuple[tuple[str, str], ...]:
    """Every file that importing the kernel's file runs, below `root`."""
    found: dict[Path, str] = {}
    pending = list(_imported(kernel, tree, root, kernel.parent))
    if not any(path != kernel for path in pending):
        return ()
    pending += _packages_of(kernel, root)
    while pending:
        path = pending.pop()
        if path == kernel or path in found:
            continue
        found[path] = _text(path)
        if len(found) > MOST_FILES or sum(map(len, found.values())) > MOST_BYTES:
            raise TaskInvalid(
                f"{kernel} imports more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB of its neighbours: "
                "put what it needs into a smaller package"
            )
        try:
            inside = parsed(found[path], str(path))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # whoever imports it is told
        pending += _imported(path, inside, root, kernel.parent)
    return tuple(sorted((path.relative_to(root).as_posix(), text) for path, text in found.items()))


def _imported(path: Path, tree: ast.Module, root: Path, beside: Path) -> Iterator[Path]:
    """Files of the user's that a file imports, wherever in it: from its package, or from the kernel's own folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [(alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            wanted = [(base + alias.name, node.level) for alias in node.names]
        else:
            continue
        for dotted, level in wanted:
            if level:
                folder = path.parents[level - 1]
                if folder == root or root in folder.parents:
                    yield from _files(dotted, folder, root)
            elif dotted.partition(".")[0] not in _NOT_NEIGHBOURS:
                for folder in dict.fromkeys((root, beside)):
                    yield from _files(dotted, folder, root)


def _files(dotted: str, folder: Path, root: Path) -> Iterator[Path]:
    """What importing `dotted` from a folder runs: each package's __init__, then the module; a trailing name is none."""
    for name in dotted.split("."):
        module, package = folder / f"{name}.py", folder / name
        if (package / "__init__.py").is_file():
            yield package / "__init__.py"
        elif module.is_file():
            yield from _packages_of(module, root)
            yield module
            return
        elif not package.is_dir():
            return
        folder = package


def _packages_of(path: Path, root: Path) -> Iterator[Path]:
    """The __init__ files between `root` and a file."""
    for folder in path.parents:
        if folder == root:
            return
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskInvalid(f"{path}, which the kernel imports, cannot be read: {error}") from error
