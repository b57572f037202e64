"""Run a kernel of NKI 0.1 (Beta 1) on arrays, watched or not."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from nki_sim.beta1 import isa, language
from nki_sim.beta1.instrument import instrumented, number
from nki_sim.beta1.kernels import Kernel, Launches, decorator, launches
from nki_sim.beta1.watching import Watcher
from nki_sim.errors import NotSupported
from nki_sim.isa import constants
from nki_sim.lint.kernel_source import top_level
from nki_sim.tracing.importing import package_of

_OURS = "nki_sim.beta1."


class _Compiler:
    """`nki.compiler.*`: where a buffer lies and in which order the compiler works changes no number."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Compiler:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Compiler(f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        for memory in ("sbuf", "psum"):
            if f".{memory}." in self._name:
                return memory
        if len(arguments) == 1 and isinstance(arguments[0], (Kernel, type(decorator))):
            return arguments[0]  # a decorator that only steers the compiler
        if self._name.endswith("no_reorder"):
            return self
        raise NotSupported(f"{self._name} is not in the Beta 1 front end")

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Any) -> None:
        return None


def _modules() -> dict[str, ModuleType]:
    root, nki = ModuleType("neuronxcc"), ModuleType("neuronxcc.nki")
    typing, compiler = ModuleType("neuronxcc.nki.typing"), ModuleType("neuronxcc.nki.compiler")
    instructions, functions = _unnamed("neuronxcc.nki.isa", isa), _unnamed("neuronxcc.nki.language", language)
    instructions.__dict__.update(constants=constants, __path__=[])
    root.__path__ = []
    nki.__path__ = []
    tensor = _Annotation()
    typing.__dict__.update(tensor=tensor, mutable_tensor=tensor, scalar=tensor)
    compiler.__dict__.update(__getattr__=lambda name: _compiler(f"nki.compiler.{name}"))
    decorators: dict[str, Callable[..., Any]] = {
        name: decorator for name in ("jit", "baremetal", "benchmark", "profile", "trace", "simulate_kernel")
    }
    nki.__dict__.update(
        decorators, isa=instructions, language=functions, typing=typing, compiler=compiler, tensor=tensor
    )
    root.__dict__.update(nki=nki)
    dtype = SimpleNamespace()
    return {
        "neuronxcc": root,
        "neuronxcc.nki": nki,
        "neuronxcc.nki.isa": instructions,
        "neuronxcc.nki.isa.constants": constants,
        "neuronxcc.nki.language": functions,
        "neuronxcc.nki.typing": typing,
        "neuronxcc.nki.compiler": compiler,
        "neuronxcc.nki.dtype": dtype,  # type: ignore[dict-item]
    }


def _unnamed(name: str, ours: ModuleType) -> ModuleType:
    """The module whose functions take a `name=`, which changes no number."""

    def taking_a_name(value: Any) -> Any:
        if not inspect.isfunction(value) or not value.__module__.startswith(_OURS) or value.__name__ == "__getattr__":
            return value

        @functools.wraps(value)
        def function(*arguments: Any, name: str = "", **keywords: Any) -> Any:
            return value(*arguments, **keywords)

        return function

    module = ModuleType(name)
    module.__dict__.update({name: taking_a_name(value) for name, value in vars(ours).items()})
    return module


def _compiler(name: str) -> _Compiler:
    if name.split(".")[-1].startswith("__"):
        raise AttributeError(name)
    return _Compiler(name)


class _Annotation:
    """`nt.tensor`, `nt.tensor[128, 512]`."""

    def __getitem__(self, key: Any) -> _Annotation:
        return self

    def __or__(self, other: Any) -> _Annotation:
        return self


@contextmanager
def installed() -> Iterator[dict[str, Any]]:
    """While it lasts, `import neuronxcc.nki` gives the front end. Yields the names that harnesses paste in."""
    mine = _modules()
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "neuronxcc"}
    for name in before:
        del sys.modules[name]
    sys.modules.update(mine)
    try:
        yield {
            "nki": mine["neuronxcc.nki"],
            "nl": mine["neuronxcc.nki.language"],
            "nisa": mine["neuronxcc.nki.isa"],
            "nt": mine["neuronxcc.nki.typing"],
        }
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] == "neuronxcc"]:
            del sys.modules[name]
        sys.modules.update(before)


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
        for node in top_level(tree.body)
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list)
    }
    for node in top_level(tree.body):
        if isinstance(node, ast.FunctionDef) and node.name == function and function not in kernels:
            called = {ast.unparse(c.func).partition("[")[0] for c in ast.walk(node) if isinstance(c, ast.Call)}
            works = any(name.startswith(("nl.", "nisa.")) and name not in _ON_HOST for name in called)
            return bool(called & kernels) or not works
    return False
