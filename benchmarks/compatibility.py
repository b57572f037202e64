"""Which public kernels run, unmodified, and compute what they should: makes docs/compatibility.md.

    python benchmarks/compatibility.py --sdk DIR --autocomp DIR --library DIR [--write docs/compatibility.md]

The directories are checkouts of aws-neuron/aws-neuron-sdk, ucb-bar/autocomp and aws-neuron/nki-library;
a repository that is not given is left out. Ends with status 1 when a case fails.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import importlib.util
import math
import sys
import typing
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nki_sim
from benchmarks.compatibility_cases import CASES, Case
from nki_sim import nki
from nki_sim.lint.kernel_source import KernelSource

REPOSITORIES = {
    "sdk": ("aws-neuron/aws-neuron-sdk", ("nki/examples",)),
    "autocomp": ("ucb-bar/autocomp", ("sols/trn-tutorial-nki2", "sols/trn-advanced-nki2")),
    "library": ("aws-neuron/nki-library", ("src/nkilib_src/nkilib",)),
}
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
    # autocomp's files are pasted behind these imports before they run
    space: dict[str, Any] = {"nki": nki, "nl": nki.language, "nisa": nki.isa, "np": np, "math": math}
    space.update({name: getattr(typing, name) for name in typing.__all__}, functools=functools, __name__=path.stem)
    exec(compile(path.read_text(), str(path), "exec"), space)
    return space[case.function]


def attempt(root: Path, case: Case) -> tuple[bool, str]:
    """Whether a case passes, and its error or what went wrong."""
    try:
        result, expected = case.run(load(root, case))
    except Exception as error:  # a wall: a public kernel may raise anything, and the table says what
        line = getattr(error, "line", None)
        return False, f"{type(error).__name__}: {str(error).splitlines()[0][:160]}" + (
            f" (line {line})" if line else ""
        )
    if result.shape != expected.shape:
        return False, f"shape {list(result.shape)} instead of {list(expected.shape)}"
    difference = np.abs(np.asarray(result, np.float64) - expected).max() / max(float(np.abs(expected).max()), 1e-30)
    if not difference <= case.tolerance:
        return False, f"relative error {difference:.1e}, allowed {case.tolerance:.0e}"
    return True, f"relative error {difference:.1e}"


def untried(root: Path, repository: str) -> list[tuple[str, str, str]]:
    """(file, kernel, why) of every kernel in a repository that has no case."""
    tried = {(case.file, case.function) for case in CASES if case.repository == repository}
    found = []
    for folder in REPOSITORIES[repository][1]:
        for path in sorted((root / folder).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            text = path.read_text(errors="replace")
            try:
                source = KernelSource(ast.parse(text))
            except SyntaxError as error:
                found.append((file, "", f"not valid Python: {error.msg}, line {error.lineno}"))
                continue
            if "neuronxcc" in text and not any(name.startswith("nki") for name in source.imports.values()):
                continue  # NKI 0.1
            for function in source.entries:
                if (file, function.name) not in tried:
                    found.append((file, function.name, why_not(source)))
    return found


def why_not(source: KernelSource) -> str:
    names = {source.dotted(node) for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)}
    needs = sorted(name for name in TRN3 if f"nki.isa.{name}" in names)
    if needs:
        return f"needs trn3: {', '.join(needs)}"
    if any(name.startswith("nki.collectives.") for name in names):
        return "needs collectives between devices"
    return "no case written"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for repository in REPOSITORIES:
        parser.add_argument(f"--{repository}", type=Path, metavar="DIR")
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    nki_sim.install()
    lines = [
        "# Compatibility",
        "",
        f"Public kernels on nki_sim {nki_sim.__version__}, unmodified, against NumPy references of our own. Made by",
        "`python benchmarks/compatibility.py`; errors are relative to the largest expected value.",
    ]
    failures = 0
    for repository, (name, _) in REPOSITORIES.items():
        root: Path | None = getattr(options, repository)
        if root is None:
            continue
        cases = [case for case in CASES if case.repository == repository]
        lines += ["", f"## {name}", "", "| kernel | with | result | detail |", "|---|---|---|---|"]
        for case in cases:
            passed, detail = attempt(root, case)
            failures += not passed
            file = case.file.removeprefix("src/nkilib_src/nkilib/")
            row = f"| `{file}` {case.function} | {case.what} | {'pass' if passed else 'FAIL'} | {detail} |"
            print(row, flush=True)
            lines.append(row)
        rest = untried(root, repository)
        lines += ["", f"Not tried: {len(rest)} kernels.", "", "| file | kernel | why |", "|---|---|---|"]
        lines += [f"| `{file}` | {kernel} | {why} |" for file, kernel, why in rest]
    if options.write is not None:
        options.write.write_text("\n".join(lines) + "\n")
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
