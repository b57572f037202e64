"""What a kernel's file is loaded with: which of its functions is the kernel, and the user's files that it imports.

Read as text: nothing of it is executed here.
"""

from __future__ import annotations

import ast
import io
import keyword
import os
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accelopt_core.candidate import parsed
from accelopt_core.language import Language
from accelopt_core.languages.nki.language import NKI
from accelopt_core.task import ENTRY_POINTS, Surroundings
from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.user_files import read_bytes, read_text
from nki_sim.lint.kernel_source import top_level

MOST_FILES = 1000
MOST_BYTES = 8 << 20
"""Of all neighbours together: they travel with every job."""

_NOT_NEIGHBOURS = {*sys.stdlib_module_names, "__main__", "nki", "nki_sim", "neuronxcc", "numpy", "ml_dtypes"}
"""What a kernel means by these is never a file beside it, nor is a kernel imported by such a name."""

_LISTED = 8
"""Functions that an error names."""

_PROJECT_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")


def kernel_text(kernel: Path) -> str:
    """Of a kernel's file. Raises TaskInvalid."""
    try:
        return read_text(kernel)
    except UnicodeDecodeError as error:
        raise TaskInvalid(f"{kernel}: cannot be read: {error}; save it as UTF-8") from error
    except OSError as error:
        raise TaskInvalid(f"{kernel}: cannot be read: {error}") from error


def surroundings_of(kernel: Path, source: str, function: str | None, language: Language = NKI) -> Surroundings:
    """Raises TaskInvalid where the file holds several kernels, or none of that name, or more neighbours than travel.

    `function`: which the user named. Text that is not Python is left to the compiler's own words.
    """
    try:
        tree = parsed(source, str(kernel))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Surroundings(function or "")
    chosen = _chosen(kernel, source, tree, function, language)
    for path in dict.fromkeys((_as_given(kernel), kernel.resolve())):  # the neighbours of a link, or of what it is to
        package = _package(path, tree)
        neighbours = _neighbours(package, tree)
        if neighbours:
            return Surroundings(chosen, ".".join(package.names), neighbours)
    return Surroundings(chosen)


# --- which function -------------------------------------------------------------------------------


def _chosen(kernel: Path, source: str, tree: ast.Module, wanted: str | None, language: Language) -> str:
    """Empty where the kernel is found by ENTRY_POINTS."""
    lines = {name: node.lineno for node in top_level(tree.body) for name in _bound(node)}
    default = next((name for name in ENTRY_POINTS if name in lines), "")
    own = next((name for name in language.entry_points if name in lines), "")
    if wanted is None and own and own != default:
        return own
    marked = language.kernels(source)
    listed = ", ".join(f"{name} (line {lines.get(name, 1)})" for name in marked) or f"none {language.marked}"
    if wanted is not None:
        if wanted not in lines:
            raise TaskInvalid(f"{kernel} defines no {wanted!r} at its top level; its kernels are: {listed}")
        return "" if wanted == default else wanted
    if default:
        return ""
    if not marked:
        functions = [node for node in top_level(tree.body) if isinstance(node, ast.FunctionDef)]
        if functions and not _may_bind(tree, ENTRY_POINTS):
            some = ", ".join(f"{node.name} (line {node.lineno})" for node in functions[:_LISTED])
            raise TaskInvalid(
                f"{kernel} has no kernel {language.marked}: name one of its {len(functions)} functions with "
                f"--function: {some}{', ...' if len(functions) > _LISTED else ''}"
            )
        return ""
    if len(marked) > 1:
        raise TaskInvalid(f"{kernel} has {len(marked)} kernels: {listed}; name one with --function")
    return marked[0]


def _may_bind(tree: ast.Module, names: tuple[str, ...]) -> bool:
    """Whether the module may have one of these names by other ways than a plain definition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            return True
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names:
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) in (*names, "*"):
            return True
    return False


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


# --- which files ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    """A file, and where it lies among those that travel: `("library", "core", "norm.py")`."""

    path: Path
    parts: tuple[str, ...]


@dataclass(frozen=True)
class _Package:
    """By what name a kernel's file is imported, and from which folders its absolute imports are found."""

    kernel: Path
    names: tuple[str, ...]
    """Of the packages that it lies in, from outside, and its own."""

    @property
    def file(self) -> _File:
        return _File(self.kernel, (*self.names[:-1], f"{self.names[-1]}.py"))

    @property
    def folders(self) -> tuple[_File, ...]:
        """The package's, the kernel's own, then the project's: each with how what is found there is imported."""
        within = self.names[:-1]
        project = next((f for f in self.kernel.parents if any((f / mark).exists() for mark in _PROJECT_MARKS)), None)
        return (
            _File(self.kernel.parents[len(within)], ()),
            _File(self.kernel.parent, within),
            *((_File(project, ()), _File(project / "src", ())) if project is not None else ()),
        )

    def initial(self) -> Iterator[_File]:
        """The __init__ files of the packages that the kernel lies in."""
        for depth in range(1, len(self.names)):
            path = self.kernel.parents[len(self.names) - 1 - depth] / "__init__.py"
            if path.is_file():
                yield _File(path, (*self.names[:depth], path.name))


def _as_given(kernel: Path) -> Path:
    """Without `..`, links as they are."""
    path = Path(os.path.abspath(kernel))
    return path if path.exists() and path.samefile(kernel) else kernel.resolve()


def _package(kernel: Path, tree: ast.Module) -> _Package:
    """As far up as there are __init__ files, as its imports reach, or as it takes to a name that is nobody else's."""
    imported = list(_imports(tree))
    levels = max((level for _, level in imported), default=0)
    for depth, folder in enumerate(kernel.parents, 1):
        absolute = [dotted for dotted, level in imported if not level and dotted.partition(".")[0] == folder.name]
        if any(next(_files(dotted, _File(folder.parent, ())), None) for dotted in absolute):
            levels = max(levels, depth)
    names = [_stand_in(kernel)]
    for folder in kernel.parents:
        climbs = len(names) <= levels or (folder / "__init__.py").is_file() or names[0] in _NOT_NEIGHBOURS
        if not climbs or not folder.name:
            break
        names.insert(0, _stand_in(folder))
    return _Package(kernel, tuple(names))


def _stand_in(path: Path) -> str:
    """The name by which a file or folder is imported; one like it, and free, where Python could not import that."""
    name = path.stem if path.suffix == ".py" else path.name
    if name.isidentifier() and (path.suffix == ".py" or path.is_dir()):
        return name
    name = re.sub(r"\W", "_", name)
    name = name if name.isidentifier() and not keyword.iskeyword(name) else f"_{name}"
    while path.with_name(name).exists() or path.with_name(f"{name}.py").exists():
        name += "_"
    return name


def _neighbours(package: _Package, tree: ast.Module) -> tuple[tuple[str, str], ...]:
    """Every file that importing the kernel's file runs: where it travels, and its text."""
    own = package.file
    found: dict[tuple[str, ...], str] = {}
    pending = list(_imported(own, tree, package))
    if not any(file.parts != own.parts for file in pending):
        return ()
    pending += package.initial()
    while pending:
        file = pending.pop()
        if file.parts == own.parts or file.parts in found:
            continue
        found[file.parts] = _text(file.path)
        if len(found) > MOST_FILES or sum(map(len, found.values())) > MOST_BYTES:
            raise TaskInvalid(
                f"{package.kernel} imports more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB of its neighbours: "
                "put what it needs into a smaller package"
            )
        try:
            inside = parsed(found[file.parts], str(file.path))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # whoever imports it is told
        pending += _imported(file, inside, package)
    return tuple(sorted(("/".join(parts), text) for parts, text in found.items()))


def _imported(file: _File, tree: ast.Module, package: _Package) -> Iterator[_File]:
    """Files of the user's that a file imports, wherever in it."""
    for dotted, level in _imports(tree, submodules=file.path.name == "__init__.py"):
        if level:
            if level <= len(file.parts):
                yield from _files(dotted, _File(file.path.parents[level - 1], file.parts[:-level]), itself=True)
        elif dotted.partition(".")[0] not in _NOT_NEIGHBOURS:
            for folder in package.folders:
                if files := list(_files(dotted, folder)):
                    yield from files
                    break


def _imports(tree: ast.Module, submodules: bool = False) -> Iterator[tuple[str, int]]:
    """What is imported, and from how many folders up; 0 for an absolute import.

    `submodules`: what `__all__` lists is imported by a star.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            yield from ((base + alias.name, node.level) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and _is_text(node.args[0]):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__"):
                dotted = ast.literal_eval(node.args[0])
                yield dotted.lstrip("."), len(dotted) - len(dotted.lstrip("."))
        elif submodules and isinstance(node, ast.Assign) and isinstance(node.value, (ast.List, ast.Tuple)):
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
                yield from ((ast.literal_eval(each), 1) for each in node.value.elts if _is_text(each))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _files(dotted: str, folder: _File, itself: bool = False) -> Iterator[_File]:
    """What importing `dotted` from a folder runs: each package's __init__, then the module; a trailing name is none.

    `itself`: the folder's own __init__ too, where a name may come from.
    """
    if itself and folder.parts and (folder.path / "__init__.py").is_file():
        yield _File(folder.path / "__init__.py", (*folder.parts, "__init__.py"))
    for name in dotted.split("."):
        module, package = folder.path / f"{name}.py", folder.path / name
        if (package / "__init__.py").is_file():
            yield _File(package / "__init__.py", (*folder.parts, name, "__init__.py"))
        elif module.is_file():
            yield _File(module, (*folder.parts, module.name))
            return
        elif not name or not package.is_dir():
            return
        folder = _File(package, (*folder.parts, name))


_DECLARED = re.compile(r"\A(?:.*\n)?[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


def _text(path: Path) -> str:
    """As Python reads it; it travels as UTF-8, and says so."""
    try:
        read = io.BytesIO(read_bytes(path))
        encoding, _ = tokenize.detect_encoding(read.readline)
        read.seek(0)
        text = io.TextIOWrapper(read, encoding).read()
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise TaskInvalid(f"{path}, which the kernel imports, cannot be read: {error}; save it as UTF-8") from error
    declared = _DECLARED.match(text)
    if declared is None or encoding.startswith("utf-8"):
        return text
    return f"{text[: declared.start(1)]}utf-8{text[declared.end(1) :]}"
