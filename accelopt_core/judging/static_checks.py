"""What a kernel's text gives away before anything runs: a tripwire with clear messages, not the isolation.

One function per rule; the registry is `RULES`. What is refused here is what no kernel needs: reading files, clocks,
frames or the environment, computing on the host, reaching into the simulator. Who hides it well gets past, and then
meets the process without files or network, and the judge that never runs his code (infra.isolation).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from accelopt_core.candidate import parsed
from nki_sim.lint import LAST_PARSED, LATEST, check_source
from nki_sim.lint.kernel_source import KernelSource


@dataclass(frozen=True)
class Finding:
    rule: str
    line: int
    message: str

    def describe(self) -> str:
        return f"line {self.line}: {self.message} ({self.rule})"


Found = Iterator[tuple[ast.AST, str]]
Rule = Callable[[KernelSource], Found]

RULES: dict[str, Rule] = {}


def rule(check: Rule) -> Rule:
    """Register a check; its name with dashes is the rule's."""
    RULES[check.__name__.replace("_", "-")] = check
    return check


def forbidden(source: str, neighbours: frozenset[str] = frozenset()) -> list[Finding]:
    """Findings of `RULES` in the order of lines; text that is not Python gives none, since it does not compile.

    `neighbours`: modules and packages of the user's that the kernel may import.
    """
    try:
        kernel = KernelSource(_without_main(parsed(source)), neighbours)
        found = {
            Finding(name, getattr(node, "lineno", 1), message)
            for name, check in RULES.items()
            for node, message in check(kernel)
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return sorted(found, key=lambda finding: (finding.line, finding.rule, finding.message))


def _without_main(tree: ast.Module) -> ast.Module:
    """Without `if __name__ == "__main__":` blocks, in which public kernels carry their own tests; they never run."""
    return ast.Module([node for node in tree.body if not _is_main(node)], tree.type_ignores)


def _is_main(node: ast.stmt) -> bool:
    if not (isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and not node.orelse):
        return False
    sides = [node.test.left, *node.test.comparators]
    return (
        len(sides) == 2
        and isinstance(node.test.ops[0], ast.Eq)
        and {getattr(side, "id", getattr(side, "value", None)) for side in sides} == {"__name__", "__main__"}
    )


def dialect(source: str) -> list[Finding]:
    """What the newest NKI compiler rejects, or the last that read a part of Python, although the simulator may run it.

    For a note: which of them the user has is not known here.
    """
    try:
        traced, read = ([f for f in check_source(source, v) if f.severity == "error"] for v in (LATEST, LAST_PARSED))
    except (RecursionError, MemoryError):
        return []
    notes = []
    for found in dict.fromkeys([*traced, *read]):
        where = (
            f", up to NKI {LAST_PARSED}" if found not in traced else f", from NKI {LATEST}" if found not in read else ""
        )
        notes.append(Finding(found.rule, found.line, f"{found.message}; {found.hint}{where}"))
    return notes


def lines_with_code(source: str) -> frozenset[int]:
    """Lines of the source that an expression covers: only they can have issued an instruction."""
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.stmt) and not isinstance(node, ast.Expr):
            lines.add(node.lineno)
    return frozenset(lines)


# --- what may be imported ---------------------------------------------------------------------------

_IMPORTABLE = {
    "nki", "neuronxcc", "numpy", "ml_dtypes", "math", "cmath", "functools", "itertools", "operator", "typing",
    "typing_extensions", "dataclasses", "enum", "collections", "abc", "numbers", "fractions", "logging", "warnings",
    "copy", "contextlib", "string", "textwrap", "__future__", "torch", "jax", "nkilib", "neuronx_distributed", "nkipy",
    "torch_xla", "torch_neuronx", "scipy",
}  # fmt: skip
"""What public kernels import; frameworks among them, which a file may import for a caller of its own."""


@rule
def unusual_import(source: KernelSource) -> Found:
    """An import that nothing but a test at the end of the file uses is left alone."""
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
            if name.partition(".")[0] not in _IMPORTABLE | source.neighbours:
                yield node, f"a kernel has no use for the module {name or '.'}"
            elif name in ("numpy.f2py", "numpy.testing", "numpy.ctypeslib", "numpy.lib.npyio", "numpy.distutils"):
                yield node, f"a kernel has no use for the module {name}"


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
def outside_access(source: KernelSource) -> Found:
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
def dunder_tricks(source: KernelSource) -> Found:
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
def computed_attribute(source: KernelSource) -> Found:
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
def patched_module(source: KernelSource) -> Found:
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


@rule
def simulator_internals(source: KernelSource) -> Found:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            dotted = source.dotted(node)
            if dotted.startswith("nki.") and any(part.startswith("_") for part in dotted.split(".")):
                yield node, f"{dotted} is private"
            if dotted.startswith(("numpy.", "math.", "nki.", "functools.")) and node.attr in _STDLIB_REACH:
                yield node, f"{dotted} reaches a module of Python's behind another"


_STDLIB_REACH = {
    "os",
    "sys",
    "builtins",
    "ctypes",
    "gc",
    "inspect",
    "importlib",
    "subprocess",
    "ctypeslib",
    "threading",
}


@rule
def behind_a_neighbour(source: KernelSource) -> Found:
    """A module of Python's that a file of the user's has imported for itself: by attribute, or by import."""
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in _STDLIB_REACH
            and _is_neighbour(source, source.dotted(node))
        ):
            yield node, f"{source.dotted(node)} reaches a module of Python's behind another"
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in _STDLIB_REACH and _is_neighbour(source, "." * node.level + (node.module or "")):
                    yield node, f"{alias.name} is a module of Python's behind another"


def _is_neighbour(source: KernelSource, dotted: str) -> bool:
    return dotted.startswith(".") or dotted.partition(".")[0] in source.neighbours


@rule
def host_computation(source: KernelSource) -> Found:
    """Numbers computed by NumPy inside a kernel are constants of one compilation, or work that nobody times."""
    for node in source.in_kernels():
        if isinstance(node, ast.Call):
            name = source.dotted(node.func)
            head, _, function = name.partition(".")
            if head == "numpy" and function.partition(".")[0] not in _HOST_NUMPY:
                yield node, f"{name}() computes on the host, not on the device"


_HOST_NUMPY = {
    "float32", "float16", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool_",
    "dtype", "prod", "ceil", "floor", "sqrt", "log2", "log", "exp", "sum", "max", "min", "maximum", "minimum", "pi",
    "finfo", "iinfo", "inf", "array", "arange", "zeros", "ones", "full", "eye", "identity", "tril", "triu", "int_",
    "lcm", "gcd", "cumsum", "power", "linspace", "tile", "repeat", "reshape", "asarray", "empty", "ndarray", "abs",
    "round", "argmax", "concatenate", "stack",
}  # fmt: skip
"""Shape arithmetic, and small tables such as masks that a kernel brings along as constants."""


@rule
def file_formats(source: KernelSource) -> Found:
    files = {"load", "save", "savez", "loadtxt", "savetxt", "fromfile", "tofile", "memmap", "genfromtxt", "DataSource"}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            name = source.dotted(node)
            if name.startswith("numpy.") and name.split(".")[-1] in files | {"open_memmap", "fromregex", "dump"}:
                yield node, f"{name} reads or writes files"


def _is_foreign(source: KernelSource, node: ast.AST) -> bool:
    """Whether an expression is an imported module or something in one."""
    return bool(source.dotted(node))
