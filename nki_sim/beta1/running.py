"""Run a kernel of NKI 0.1 (Beta 1) on arrays, watched or not."""

from __future__ import annotations

import ast
import functools
import math
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from nki_sim.beta1.instrument import instrumented, number
from nki_sim.beta1.kernels import Kernel, Launches, launches
from nki_sim.beta1.modules import installed
from nki_sim.beta1.watching import Watcher
from nki_sim.importing import package_of

_MODULE = "old_kernel"
_ON_HOST = ("nl.spmd_dim", "nl.nc")


@dataclass
class Watched:
    """What a run gave, and what was seen on the way."""

    outputs: Any
    watcher: Watcher
    grids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The launch grid of each kernel that was called."""
    shapes: dict[str, list[str]] = field(default_factory=dict)
    """The arguments that each of them was called with."""
    written: dict[str, list[str]] = field(default_factory=dict)
    """Arguments that a kernel wrote which returned nothing."""


def parsed(source: str) -> ast.Module:
    tree = ast.parse(source)
    number(tree)
    return tree


def run(
    tree: ast.Module,
    function: str,
    arguments: Sequence[Any],
    keywords: dict[str, Any] | None = None,
    file: str = "kernel.py",
    grid: tuple[int, ...] = (),
) -> Watched:
    """The kernel `function` of a numbered module on arrays, and on a launch grid.

    Raises whatever the kernel or the front end does.
    """
    watcher = Watcher()
    noted = Launches()
    folder, package = str(Path(file).resolve().parent), package_of(file)
    sys.path.insert(0, folder)
    token = launches.set(noted)
    try:
        code = compile(instrumented(tree), file, "exec")
        with installed() as pasted:
            module = ModuleType(_MODULE)
            sys.modules[_MODULE] = module  # dataclasses look up where they are
            space = vars(module)
            space.update({**_assumed(), **pasted, **watcher.names(), "__package__": package})
            exec(code, space)
            kernel = space[function]
            if not isinstance(kernel, Kernel) and not _launches(tree, function):
                kernel = Kernel(kernel)
            if grid:
                kernel = kernel[grid]
            outputs = kernel(*arguments, **(keywords or {}))
    finally:
        launches.reset(token)
        sys.modules.pop(_MODULE, None)
        sys.path.remove(folder)
    return Watched(outputs, watcher, noted.grids, noted.shapes, noted.written)


def _assumed() -> dict[str, Any]:
    """What kernels without imports expect to find: their harness pastes it in front of them."""
    from nki_sim.beta1 import language

    return {
        **{name: getattr(typing, name) for name in ("Any", "Optional", "Tuple", "List", "Union")},
        "np": np,
        "math": math,
        "functools": functools,
        "par_dim": language.par_dim,
        "reduce": functools.reduce,
    }


def _launches(tree: ast.Module, function: str) -> bool:
    """Whether the function is no kernel but calls one, `kernel[grid](...)`."""
    kernels = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list)
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function and function not in kernels:
            called = {ast.unparse(c.func).partition("[")[0] for c in ast.walk(node) if isinstance(c, ast.Call)}
            works = any(name.startswith(("nl.", "nisa.")) and name not in _ON_HOST for name in called)
            return bool(called & kernels) or not works
    return False
