"""Which public kernels run, unmodified, and compute what they should: makes docs/compatibility.md.

    python benchmarks/compatibility.py --sdk DIR --autocomp DIR --library DIR [--write docs/compatibility.md]

The directories are checkouts of aws-neuron/aws-neuron-sdk, ucb-bar/autocomp and aws-neuron/nki-library;
a repository that is not given is left out. Ends with status 1 when a case fails.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nki_sim
from benchmarks.compatibility_cases import CASES, Case
from nki_sim.lint.kernel_source import KernelSource
from nki_sim.program.program import Program


@dataclass(frozen=True)
class Repository:
    name: str
    folders: tuple[str, ...]
    """Where its kernels are."""
    cases: tuple[str, ...]
    """Modules that hold its cases."""
    preamble: str = ""
    """What its own harness pastes in front of a file."""


REPOSITORIES = {
    "sdk": Repository("aws-neuron/aws-neuron-sdk", ("nki",), ("compatibility_sdk",)),
    "autocomp": Repository(
        "ucb-bar/autocomp",
        ("sols",),
        ("compatibility_autocomp",),
        "import functools, math, nki, nki.language as nl, nki.isa as nisa, numpy as np; from typing import *\n",
    ),
    "library": Repository(
        "aws-neuron/nki-library",
        ("src/nkilib_src/nkilib",),
        ("compatibility_library", "compatibility_models", "compatibility_experts"),
    ),
}
NKI_0_1 = "of NKI 0.1, see [migration.md](migration.md)"
TRN3 = ("nc_matmul_mx", "quantize_mx", "activate2", "exponential", "rand2")


def load(root: Path, case: Case) -> Any:
    """The kernel of a case. Raises whatever its file raises when it is executed."""
    path = root / case.file
    if case.repository == "library":
        package = root / "src" / "nkilib_src"
        if str(package) not in sys.path:
            sys.path.insert(0, str(package))
        module = importlib.import_module(".".join(path.relative_to(package).with_suffix("").parts))
        return getattr(module, case.function)
    sys.path.insert(0, str(path.parent))  # its neighbours, as when Python runs the file
    try:
        space: dict[str, Any] = {"__name__": path.stem}
        exec(compile(REPOSITORIES[case.repository].preamble + path.read_text(), str(path), "exec"), space)
    finally:
        sys.path.remove(str(path.parent))
    return space[case.function]


@dataclass(frozen=True)
class Tried:
    """What a case came to: its error relative to the largest expected value, or words where there is none."""

    passed: bool
    error: float | None = None
    said: str = ""

    def __str__(self) -> str:
        said = self.said if self.error is None else f"{self.error:.1e}"
        return said if self.passed else f"**FAIL**: {said}"


def attempt(root: Path, case: Case) -> Tried:
    try:
        result, expected = case.run(load(root, case))
    except Exception as error:  # a public kernel may raise anything, and the table says what
        line = getattr(error, "line", None)
        said = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}" + (f" (line {line})" if line else "")
        rightly = bool(case.rejected) and case.rejected in str(error)
        return Tried(rightly, said=f"rejected, rightly: {said}" if rightly else said)
    if case.rejected:
        return Tried(False, said=f"was not rejected, though {case.rejected}")
    if result.shape != expected.shape:
        return Tried(False, said=f"shape {list(result.shape)} instead of {list(expected.shape)}")
    difference = np.abs(np.asarray(result, np.float64) - expected).max() / max(float(np.abs(expected).max()), 1e-30)
    if not difference <= case.tolerance:
        return Tried(False, said=f"relative error {difference:.1e}, allowed {case.tolerance:.0e}")
    return Tried(True, float(difference))


class NotTraced(Exception):
    """A case's kernel was refused, raised something, or was never called; the message says which, in one line."""


class _Traced(Exception):
    """The case has called its kernel: nothing after that is of interest."""

    def __init__(self, program: Program, arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.program, self.arguments = program, arguments


def trace_of(root: Path, case: Case) -> tuple[Program, tuple[Any, ...]]:
    """What the kernel of a case traces to, and the arguments that the case calls it with. Raises NotTraced.

    Once in a process for each checkout: two trees of one package cannot be imported into one.
    """

    def tracing(kernel: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            raise _Traced(nki_sim.trace(kernel, *arguments, **keywords), (*arguments, *keywords.values()))

        return call

    with ExitStack() as patched:
        for module in REPOSITORIES[case.repository].cases:  # which import it by name
            patched.enter_context(patch(f"benchmarks.{module}.simulate", tracing))
        try:
            case.run(load(root, case))
        except _Traced as traced:
            return traced.program, traced.arguments
        except Exception as error:  # a public kernel may raise anything, and the table says what
            raise NotTraced(f"{type(error).__name__}: {error}".splitlines()[0][:160]) from error
    raise NotTraced("no kernel was called")


def untried(root: Path, repository: Repository) -> list[tuple[str, str, str]]:
    """(file, kernel, why) of every kernel in a repository that has no case."""
    tried = {(case.file, case.function) for case in CASES}
    found = []
    for path in sorted(path for folder in repository.folders for path in (root / folder).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        text = path.read_text(errors="replace")
        if "nki" not in text:
            continue
        if "@nki_jit" in text:
            found.append((file, "", NKI_0_1))
            continue
        try:
            tree = ast.parse(text)
            if repository.preamble and not any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in tree.body):
                tree = ast.parse(repository.preamble + text)
        except SyntaxError as error:
            found.append((file, "", f"not valid Python: {error.msg}, line {error.lineno}"))
            continue
        source = KernelSource(tree)
        found += [(file, f.name, why_not(source)) for f in source.entries if (file, f.name) not in tried]
    return found


def why_not(source: KernelSource) -> str:
    names = {source.dotted(node) for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)}
    statements = {id(node.value) for node in ast.walk(source.tree) if isinstance(node, ast.Expr)}
    used = {
        source.dotted(node.func).removeprefix("nki.isa.")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and id(node) not in statements
    }
    if (
        any(name.startswith(("neuronxcc.", "torch_neuronx.")) for name in source.imports.values())
        or names & {"nki.language.arange", "nki.language.mgrid", "nki.language.par_dim"}
        or used
        & {"activation", "dma_copy", "nc_matmul", "nc_transpose", "tensor_copy", "tensor_scalar", "tensor_tensor"}
    ):
        return NKI_0_1
    needs = sorted(name for name in TRN3 if f"nki.isa.{name}" in names)
    if needs:
        return f"needs trn3: {', '.join(needs)}"
    if any("_mx" in name.lower() and "nkilib" not in name for name in source.imports):
        return "needs trn3: its parts do"
    if any(name.startswith("nki.collectives.") for name in names):
        return "needs collectives between devices"
    return "no case written"


def told_of(cases: list[Tried]) -> str:
    """The largest error, and the words of those that have none."""
    errors = [case.error for case in cases if case.error is not None]
    return "; ".join(
        [f"{max(errors, default=0.0):.1e}"] * bool(errors) + [str(case) for case in cases if case.error is None]
    )


NAMED = 3
"""Of so many files in one folder each is named; more are counted."""


def summary(repository: Repository, rest: list[tuple[str, str, str]]) -> list[str]:
    """The kernels without a case: a line for each reason, with their files."""
    lines = ["", f"Not run: {len(rest)} kernels.", ""]
    for why, group in itertools.groupby(sorted(rest, key=lambda row: row[2]), key=lambda row: row[2]):
        files = sorted({shortened(repository, file) for file, _, _ in group})
        folders = [
            (folder, list(each)) for folder, each in itertools.groupby(files, key=lambda f: f.rpartition("/")[0])
        ]
        said = [
            f"{len(each)} files of `{folder}/`" if len(each) > NAMED else ", ".join(f"`{file}`" for file in each)
            for folder, each in folders
        ]
        lines.append(f"* {why}: {', '.join(said)}.")
    return lines


def shortened(repository: Repository, file: str) -> str:
    """Without the folder that all kernels of its repository are in, if that is one."""
    return file.removeprefix(f"{repository.folders[0]}/")


def add_checkouts(parser: argparse.ArgumentParser) -> None:
    for key in REPOSITORIES:
        parser.add_argument(f"--{key}", type=Path, metavar="DIR")


def checkouts(options: argparse.Namespace) -> Iterator[tuple[str, Repository, Path]]:
    """Those that were given; their cases are in CASES then."""
    for key, repository in REPOSITORIES.items():
        root: Path | None = getattr(options, key)
        if root is not None:
            for module in repository.cases:
                importlib.import_module(f"benchmarks.{module}")
            yield key, repository, root


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_checkouts(parser)
    parser.add_argument("--only", default="", metavar="TEXT", help="only the cases whose file contains this")
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    nki_sim.install()
    lines = [
        "# Compatibility",
        "",
        f"Public kernels on nki_sim {nki_sim.__version__}, unmodified, against NumPy references of our own. Made by",
        "`python benchmarks/compatibility.py`; the modules beside it have the cases: shapes, types and cores. Errors",
        "are relative to the largest expected value.",
    ]
    failures = 0
    for key, repository, root in checkouts(options):
        cases = [case for case in CASES if case.repository == key and options.only in case.file]
        found: dict[str, list[Tried]] = {}
        for case in cases:
            tried = attempt(root, case)
            print(f"{case.file} {case.function}, {case.what}: {tried}", flush=True)
            found.setdefault(f"`{shortened(repository, case.file)}` {case.function}", []).append(tried)
        failed = sum(not tried.passed for each in found.values() for tried in each)
        told = f"{len(cases) - failed} of {len(cases)} cases are as they should be"
        lines += ["", f"## {repository.name}", "", f"{told}. Files are below `{repository.folders[0]}/`."]
        lines += ["", "| kernel | cases | largest error |", "|---|---|---|"]
        lines += [f"| {kernel} | {len(each)} | {told_of(each)} |" for kernel, each in found.items()]
        lines += summary(repository, untried(root, repository))
        failures += failed
    if options.write is not None:
        options.write.write_text("\n".join(lines) + "\n")
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
