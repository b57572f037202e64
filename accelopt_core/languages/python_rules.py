"""What the Python around a kernel gives away before anything runs: a tripwire with clear messages, not the isolation.

One function per rule. What is refused here is what no kernel needs in any language: reading files, clocks, frames or
the environment, patching modules. Who hides it well gets past, and then meets the process without files or network,
and the judge that never runs his code (infra.isolation).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from accelopt_core.candidate import parsed
from accelopt_core.language import Finding


class SourceFile(Protocol):
    """A kernel's file, read and not run."""

    @property
    def tree(self) -> ast.Module: ...

    @property
    def neighbours(self) -> frozenset[str]:
        """Modules and packages beside the file, which it may import."""
        ...

    @property
    def imports(self) -> Mapping[str, str]:
        """Local name -> dotted name of what it imports; one of the file's own package begins with dots."""
        ...

    @property
    def functions(self) -> Mapping[str, ast.AST]:
        """At its top level, by name."""
        ...

    def dotted(self, node: ast.AST) -> str:
        """The dotted name of what was imported and is used here; empty where it is not that plain."""
        ...


Found = Iterator[tuple[ast.AST, str]]
Rule = Callable[[SourceFile], Found]

PYTHON_RULES: dict[str, Rule] = {}
"""Those that hold in every language."""


def rule(check: Rule) -> Rule:
    """Register a check; its name with dashes is the rule's."""
    PYTHON_RULES[named(check)] = check
    return check


def named(check: Callable[..., object]) -> str:
    return check.__name__.replace("_", "-")


def without_main(source: str) -> ast.Module:
    """The file without `if __name__ == "__main__":` blocks, in which public kernels carry their own tests; they never
    run. Raises what `candidate.parsed` does."""
    tree = parsed(source)
    return ast.Module([node for node in tree.body if not _is_main(node)], tree.type_ignores)


UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What reading a text raises that no compiler takes."""


def in_order(found: Iterator[tuple[str, ast.AST, str]]) -> list[Finding]:
    """Each finding once, of (rule, node, message)."""
    once = {Finding(name, getattr(node, "lineno", 1), message) for name, node, message in found}
    return sorted(once, key=lambda finding: (finding.line, finding.rule, finding.message))


def _is_main(node: ast.stmt) -> bool:
    if not (isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and not node.orelse):
        return False
    sides = [node.test.left, *node.test.comparators]
    return (
        len(sides) == 2
        and isinstance(node.test.ops[0], ast.Eq)
        and {getattr(side, "id", getattr(side, "value", None)) for side in sides} == {"__name__", "__main__"}
    )


def lines_with_code(source: str) -> frozenset[int]:
    """Lines of the source that an expression covers: only they can have issued an instruction."""
    try:
        tree = parsed(source)
    except UNREADABLE:
        return frozenset()
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.stmt) and not isinstance(node, ast.Expr):
            lines.add(node.lineno)
    return frozenset(lines)


# --- reaching out -----------------------------------------------------------------------------------

_OUTSIDE = {
    "open": "reads or writes files",
    "input": "reads the terminal",
    "exec": "runs text as code",
    "eval": "runs text as code",
    "compile": "runs text as code",
    "__import__": "imports by a computed name",
    "breakpoint": "starts a debugger",
    "vars": "reaches into objects by name",
    "globals": "reaches into the module by name",
    "locals": "reaches into the frame by name",
    "memoryview": "reaches into memory",
}


@rule
def outside_access(source: SourceFile) -> Found:
    """Builtins that reach beyond the kernel, called or passed on; a local of that name is somebody's own."""
    own = {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(source.tree) if isinstance(node, ast.arg)}
    own |= {*source.functions, *source.imports}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and node.id in _OUTSIDE and node.id not in own:
            yield node, f"{node.id}() {_OUTSIDE[node.id]}: a kernel sees its arguments and nothing else"


_PLAIN_DUNDERS = {
    "__name__", "__doc__", "__init__", "__post_init__", "__all__", "__version__", "__author__", "__repr__", "__str__",
    "__call__", "__eq__", "__hash__", "__len__", "__iter__", "__getitem__", "__setitem__", "__enter__", "__exit__",
    "__future__", "__annotations__", "__class__", "__file__", "__contains__", "__add__", "__mul__", "__sub__",
    "__new__", "__slots__", "__wrapped__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__int__", "__index__",
    "__debug__", "__next__",
}  # fmt: skip


@rule
def dunder_tricks(source: SourceFile) -> Found:
    for node in ast.walk(source.tree):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name.startswith("__") and name.endswith("__") and name not in _PLAIN_DUNDERS:
            yield node, f"{name} reaches behind objects"
        if isinstance(node, ast.Attribute) and name.startswith(("f_", "gi_", "tb_", "co_")) and name[3:] in _FRAMES:
            yield node, f".{name} reads frames of the interpreter"


_FRAMES = {"back", "globals", "locals", "builtins", "code", "frame", "next", "consts", "lineno"} | {
    # after a prefix of three characters, "f_" leaves one letter more
    name[1:]
    for name in ("back", "globals", "locals", "builtins", "code")
}


@rule
def computed_attribute(source: SourceFile) -> Found:
    """getattr(nl, "add") is plain; a name put together at run time, or written into a module, hides something."""
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id in ("setattr", "delattr") and node.args and _is_foreign(source, node.args[0]):
            yield node, f"{node.func.id}() on an imported module"
        if node.func.id == "getattr" and len(node.args) > 1 and _is_foreign(source, node.args[0]):
            name = node.args[1]
            if isinstance(name, (ast.BinOp, ast.JoinedStr, ast.Call, ast.Subscript)):
                yield node, "getattr() on an imported module with a name put together at run time"
            elif isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value.startswith("_"):
                yield node, f"getattr() of the private name {name.value}"


@rule
def patched_module(source: SourceFile) -> Found:
    for node in ast.walk(source.tree):
        targets = (
            node.targets
            if isinstance(node, (ast.Assign, ast.Delete))
            else [node.target]
            if isinstance(node, (ast.AugAssign, ast.AnnAssign))
            else []
        )
        for target in targets:
            if isinstance(target, ast.Attribute) and _is_foreign(source, target.value):
                yield node, f"assigns to {source.dotted(target)}, which is not the kernel's"


_ENVIRONMENT = {"environ", "environb", "putenv", "unsetenv"}


@rule
def environment(source: SourceFile) -> Found:
    """Variables that a compiler reads, such as NEURON_CC_FLAGS: a kernel that sets one is compiled by other rules."""
    for node in ast.walk(source.tree):
        by_text = isinstance(node, ast.Constant) and node.value in _ENVIRONMENT
        names = isinstance(node, (ast.Attribute, ast.Name)) and source.dotted(node) in {f"os.{n}" for n in _ENVIRONMENT}
        if by_text or names:
            yield node, "reads or sets variables of the environment"


STDLIB_REACH = {"os", "sys", "builtins", "ctypes", "gc", "inspect", "importlib", "subprocess", "ctypeslib", "threading"}
"""Modules of Python's that others carry along as attributes."""


@rule
def behind_a_neighbour(source: SourceFile) -> Found:
    """A module of Python's that a file of the user's has imported for itself: by attribute, or by import."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and node.attr in STDLIB_REACH and _is_neighbour(source, source.dotted(node)):
            yield node, f"{source.dotted(node)} reaches a module of Python's behind another"
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in STDLIB_REACH and _is_neighbour(source, "." * node.level + (node.module or "")):
                    yield node, f"{alias.name} is a module of Python's behind another"


def _is_neighbour(source: SourceFile, dotted: str) -> bool:
    return dotted.startswith(".") or dotted.partition(".")[0] in source.neighbours


@rule
def file_formats(source: SourceFile) -> Found:
    files = {"load", "save", "savez", "loadtxt", "savetxt", "fromfile", "tofile", "memmap", "genfromtxt", "DataSource"}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            name = source.dotted(node)
            if name.startswith("numpy.") and name.split(".")[-1] in files | {"open_memmap", "fromregex", "dump"}:
                yield node, f"{name} reads or writes files"


def _is_foreign(source: SourceFile, node: ast.AST) -> bool:
    """Whether an expression is an imported module or something in one."""
    return bool(source.dotted(node))


def unusual_imports(source: SourceFile, importable: frozenset[str]) -> Found:
    """What a kernel has no use for. An import that nothing but a test at the end of the file uses is left alone."""
    used = {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name)}
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            local = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            if not local & used and "*" not in local:
                continue
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
        for name in names:
            if name.partition(".")[0] not in importable | source.neighbours:
                yield node, f"a kernel has no use for the module {name or '.'}"
            elif name in ("numpy.f2py", "numpy.testing", "numpy.ctypeslib", "numpy.lib.npyio", "numpy.distutils"):
                yield node, f"a kernel has no use for the module {name}"


USUAL_IMPORTS = frozenset({
    "numpy", "ml_dtypes", "math", "cmath", "functools", "itertools", "operator", "typing", "typing_extensions",
    "dataclasses", "enum", "collections", "abc", "numbers", "fractions", "logging", "warnings", "copy", "contextlib",
    "string", "textwrap", "__future__",
})  # fmt: skip
"""Of Python's and of numbers, beside a language's own."""


def behind_modules(source: SourceFile, packages: tuple[str, ...]) -> Found:
    """A module of Python's that is reached through one of these."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            dotted = source.dotted(node)
            if dotted.startswith(packages) and node.attr in STDLIB_REACH:
                yield node, f"{dotted} reaches a module of Python's behind another"
