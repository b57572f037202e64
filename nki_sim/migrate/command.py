"""`python -m nki_sim migrate`: one file in, one file out, and a report."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from nki_sim.beta1.instrument import absent_imports
from nki_sim.lint import check_source
from nki_sim.lint.kernel_source import KernelSource, top_level
from nki_sim.migrate import proving
from nki_sim.migrate.beta1_to_current import migrate_beta1
from nki_sim.migrate.calls import Calls
from nki_sim.migrate.current import migrate_current
from nki_sim.migrate.report import Finding, Kind, Migration
from nki_sim.tracing.session import where


class Dialect(str, Enum):
    BETA1 = "0.1 (Beta 1)"
    PARSER = "0.2 to 0.6"
    TRACER = "0.7"
    UNKNOWN = "no NKI"


_OLD_NAMES = {"nl.arange", "nl.mgrid", "nl.loop_reduce", "nl.static_cast", "nl.spmd_dim"}
_DST_FIRST = {
    "activation",
    "nc_matmul",
    "nc_transpose",
    "tensor_copy",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_tensor",
}
_NEW_NAMES = {"tiles", "blocks", "alloc_tiles", "alloc_blocks", "scalar_load", "scalar_store", "NkiScalar"}


def dialect_of(source: str) -> Dialect:
    """The oldest NKI that the file's calls belong to. Raises SyntaxError."""
    tree = ast.parse(source)
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [f"{node.module}.{alias.name}" for alias in node.names]
            if isinstance(node, ast.ImportFrom) and node.module
            else []
        )
    }
    # kernels of 0.2 and later may still take their annotations from the old namespace
    if any(n.startswith("neuronxcc") and not n.startswith("neuronxcc.nki.typing") for n in imported):
        return Dialect.BETA1
    names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    bases = {n.value.id for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    uses = bool({"nl", "nisa", "nki"} & bases) or any(n == "nki" or n.startswith("nki.") for n in imported)
    if not uses:
        return Dialect.UNKNOWN
    calls = Calls(tree)
    dotted = {calls.name(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    if dotted & _OLD_NAMES or _returns_tiles(tree):
        return Dialect.BETA1
    return Dialect.TRACER if names & _NEW_NAMES else Dialect.PARSER


def _returns_tiles(tree: ast.Module) -> bool:
    """Whether an instruction's result is used, as before 0.2."""
    names = Calls(tree)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and id(node) not in statements:
            module, _, name = names.name(node.func).rpartition(".")
            if module == "nisa" and name in _DST_FIRST:
                return not any(keyword.arg == "dst" for keyword in node.keywords)
    return False


class Unclear(Exception):
    """What to add to the command line."""


def migrate_file(
    path: Path,
    function: str | None,
    arguments: Sequence[Any],
    constants: dict[str, Any],
    also_in_06: bool,
    grid: tuple[int, ...] = (),
) -> tuple[Dialect, Migration]:
    """The file's dialect and its migration to 0.7. Raises Unclear, OSError, SyntaxError."""
    text = path.read_text(encoding="utf-8-sig")
    dialect = dialect_of(text)
    if dialect is Dialect.UNKNOWN:
        raise Unclear(f"{path} calls no NKI")
    if dialect is not Dialect.BETA1:
        migration = migrate_current(text, also_in_06)
        if arguments and not migration.left:
            _compare(text, migration, only_kernel(text, function), arguments, constants, str(path))
        _check(migration)
        return dialect, migration
    name = only_kernel(text, function)
    if not arguments:
        raise Unclear(
            "a kernel of NKI 0.1 is migrated for the shapes it is called with: give --shape 128x512:float32 ..., "
            "--inputs a.npy ... or --problem REF.py, and constants with --set"
        )
    migration = migrate_beta1(text, name, arguments, constants, str(path), grid)
    _check(migration)
    if also_in_06:
        migration.findings.append(Finding(0, "0.6", "all that is written is valid in NKI 0.6 too", Kind.NOTE))
    return dialect, migration


def kernels_of(text: str) -> list[str]:
    """Functions that the module marks as kernels, or, where it marks none, those that allocate HBM."""
    source = KernelSource(ast.parse(text))
    marked = []
    others = []
    for node in top_level(source.tree.body):
        if isinstance(node, ast.FunctionDef):
            decorators = " ".join(ast.unparse(d) for d in node.decorator_list)
            if any(word in decorators for word in ("jit", "baremetal", "benchmark", "profile")):
                marked.append(node.name)
            elif "shared_hbm" in ast.unparse(node):
                others.append(node.name)
    return marked or others


def only_kernel(text: str, function: str | None) -> str:
    found = kernels_of(text)
    if function is not None:
        return function
    if len(found) != 1:
        listed = ", ".join(found) or "none"
        raise Unclear(f"the file has {len(found)} kernels ({listed}): name one with --function")
    return found[0]


def _compare(
    old: str, migration: Migration, function: str, arguments: Sequence[Any], constants: dict[str, Any], file: str
) -> None:
    """Old and new traced: they have to be the same program."""
    try:
        after = proving.traced(migration.source, function, arguments, constants, file)
    except Exception as error:  # a kernel may raise anything
        said = f"the new file: {type(error).__name__}: {error}"
        migration.findings.append(Finding(where(error)[0] or 0, "trace", said, Kind.PERSON))
        migration.proven = False
        return
    try:
        before = proving.traced(old, function, arguments, constants, file, whole=False)
    except Exception as error:  # a kernel may raise anything
        migration.proof = f"not compared: the old kernel does not trace here ({error})"
        return
    migration.proven = before.digest == after.digest
    if migration.proven:
        migration.proof = f"old and new trace to the same stream of {before.instructions} instructions"
    else:
        counts = f"{before.instructions} and {after.instructions} instructions"
        migration.proof = f"old and new trace to DIFFERENT streams of {counts}"
        migration.findings.append(Finding(0, "trace", "old and new trace to different instructions", Kind.PERSON))


def _check(migration: Migration) -> None:
    """What `nki_sim check` says against the new file; and what of it was not imported, where that could not be."""
    if migration.left:
        return
    for found in check_source(migration.source):
        if found.severity == "error":
            said = f"line {found.line} of the new file: {found.message}; {found.hint}"
            migration.findings.append(Finding(0, found.rule, said, Kind.PERSON))
    absent = absent_imports(ast.parse(migration.source).body)
    if absent:
        said = f"not imported as a whole, {', '.join(dict.fromkeys(absent))} not being installed here: its kernels were"
        migration.findings.append(Finding(0, "import", said, Kind.NOTE))


def report(path: Path, dialect: Dialect, migration: Migration) -> str:
    """What is printed: what is left first, then notes, then the table."""
    lines = [f"{path}: NKI {dialect.value} -> 0.7"]
    for kind in (Kind.PERSON, Kind.NOTE):
        lines += [f"{path}: {finding}" for finding in migration.findings if finding.kind is kind]
    return "\n".join([*lines, migration.summary()])
