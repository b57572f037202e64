"""A kernel in the place of a model's own function: its text as a module beside the file, and an import in that file.

What the model imports keeps its name, and every line but the function's own stays as it was. Read as text: nothing of
the model or of the kernel is executed here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from accelopt_core.ports import TargetMisconfigured


class CannotPlace(TargetMisconfigured):
    """The kernel does not fit in there: name another file or function, or adapt the kernel."""


@dataclass(frozen=True)
class Place:
    """`file`: below the checkout, with `/`; `function`: one that it defines at its top level."""

    file: str
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.function}"

    @property
    def folder(self) -> PurePosixPath:
        return PurePosixPath(self.file).parent

    @property
    def package_mark(self) -> str:
        """The file that makes its folder a package."""
        return str(self.folder / "__init__.py")

    @property
    def module(self) -> str:
        """Of the kernel, without .py: of a name that nobody else has."""
        return f"nki_optimizer_{self.function}"

    @property
    def module_file(self) -> str:
        return str(self.folder / f"{self.module}.py")


@dataclass(frozen=True)
class Kernel:
    """`name`: as the user named it; `function`: of its text."""

    name: str
    source: str
    function: str


@dataclass(frozen=True)
class Placed:
    """`files`: by their name below the checkout; `notes`: for the user, a line each."""

    files: dict[str, bytes]
    notes: tuple[str, ...]


def placed(kernel: Kernel, place: Place, text: bytes, *, in_package: bool) -> Placed:
    """`text`: of the place's file. Raises CannotPlace."""
    try:
        model = text.decode("utf-8-sig")
        tree = ast.parse(model)
    except (UnicodeDecodeError, SyntaxError, ValueError) as error:
        raise CannotPlace(f"{place.file} is not Python that can be read: {error}") from None
    try:
        kernel_tree = ast.parse(kernel.source)
    except SyntaxError as error:
        raise CannotPlace(f"{kernel.name} is not Python that can be read: {error}") from None
    old = _function(tree, place.function, place.file)
    new = _function(kernel_tree, kernel.function, kernel.name)
    if not new.decorator_list:
        raise CannotPlace(f"{kernel.name}: nothing decorates {kernel.function}: a model calls it with @nki.jit")
    notes = [*_fit(old, new, kernel, place)]
    dots = "." if in_package else ""
    line = f"from {dots}{place.module} import {kernel.function} as {place.function}"
    return Placed(
        {place.file: _with_line(text, model, old, line), place.module_file: kernel.source.encode()}, tuple(notes)
    )


def _function(tree: ast.Module, name: str, file: str) -> ast.FunctionDef:
    found = [node for node in _of_the_module(tree) if name in _binds(node)]
    (where,) = found if len(found) == 1 else [None]
    if isinstance(where, ast.FunctionDef) and where in tree.body:
        return where
    if isinstance(where, ast.ImportFrom):
        raise CannotPlace(f"{file} imports {name} from {where.module}: name the file that defines it")
    if found:
        lines = ", ".join(str(getattr(node, "lineno", "?")) for node in found)
        raise CannotPlace(f"{file} binds {name} in line {lines}: it must be one function at the top level")
    known = ", ".join(node.name for node in tree.body if isinstance(node, ast.FunctionDef)) or "none"
    raise CannotPlace(f"{file} defines no {name}; its functions: {known}")


def _of_the_module(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when the module is loaded; a name that a function or class binds inside of itself is its own."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _of_the_module(child)


def _binds(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
        yield node.id
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)


def _fit(old: ast.FunctionDef, new: ast.FunctionDef, kernel: Kernel, place: Place) -> Iterator[str]:
    """Whether whoever calls the one may call the other; with what to keep an eye on."""
    before, after = _positional(old), _positional(new)
    needed = len(after) - len(new.args.defaults)
    if new.args.vararg is None and (len(before) > len(after) or len(before) < needed):
        raise CannotPlace(
            f"{kernel.name}: {kernel.function}({', '.join(after)}) cannot stand for {place.function}"
            f"({', '.join(before)}) of {place.file}: the model would call it with other arguments"
        )
    lacking = [name for name in _keywords(old) if name not in (*after, *_keywords(new))]
    if lacking and new.args.kwarg is None:
        raise CannotPlace(f"{kernel.name}: {kernel.function} takes no {', '.join(lacking)}, which {place} does")
    if before != after[: len(before)]:
        yield f"{place}: parameters are called ({', '.join(before)}) there and ({', '.join(after)}) in {kernel.name}"
    if not old.decorator_list:
        yield f"{place} is not decorated, and {kernel.name} is: who calls it must not decorate it again"


def _positional(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in (*function.args.posonlyargs, *function.args.args)]


def _keywords(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in function.args.kwonlyargs]


def _with_line(text: bytes, model: str, old: ast.FunctionDef, line: str) -> bytes:
    """The file with `line` where the function stood; every other byte, a byte order mark and line ends stay."""
    first = min([old.lineno, *(each.lineno for each in old.decorator_list)])
    assert old.end_lineno is not None
    mark = text[: len(text) - len(model.encode())]
    lines = text[len(mark) :].splitlines(keepends=True)
    last = lines[old.end_lineno - 1]
    end = last[len(last.rstrip(b"\r\n")) :]
    return mark + b"".join([*lines[: first - 1], line.encode() + end, *lines[old.end_lineno :]])
