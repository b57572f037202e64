"""`neuronxcc.nki` as a kernel of NKI 0.1 imports it, while one is run."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from nki_sim.beta1 import isa, language
from nki_sim.beta1.kernels import Kernel, decorator
from nki_sim.errors import NotSupported

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
    instructions = ModuleType("neuronxcc.nki.isa")
    instructions.__dict__.update({name: _unnamed(value) for name, value in vars(isa).items()})
    root.__path__ = []
    nki.__path__ = []
    tensor = _Annotation()
    typing.__dict__.update(tensor=tensor, mutable_tensor=tensor, scalar=tensor)
    compiler.__dict__.update(__getattr__=lambda name: _compiler(f"nki.compiler.{name}"))
    decorators: dict[str, Callable[..., Any]] = {
        name: decorator for name in ("jit", "baremetal", "benchmark", "profile", "trace", "simulate_kernel")
    }
    nki.__dict__.update(
        decorators, isa=instructions, language=language, typing=typing, compiler=compiler, tensor=tensor
    )
    root.__dict__.update(nki=nki)
    dtype = SimpleNamespace()
    return {
        "neuronxcc": root,
        "neuronxcc.nki": nki,
        "neuronxcc.nki.isa": instructions,
        "neuronxcc.nki.language": language,
        "neuronxcc.nki.typing": typing,
        "neuronxcc.nki.compiler": compiler,
        "neuronxcc.nki.dtype": dtype,  # type: ignore[dict-item]
    }


def _unnamed(value: Any) -> Any:
    """An instruction that takes a `name=`, which changes no number."""
    if not inspect.isfunction(value) or not value.__module__.startswith(_OURS) or value.__name__ == "__getattr__":
        return value

    @functools.wraps(value)
    def instruction(*arguments: Any, name: str = "", **keywords: Any) -> Any:
        return value(*arguments, **keywords)

    return instruction


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
            "nl": language,
            "nisa": mine["neuronxcc.nki.isa"],
            "nt": mine["neuronxcc.nki.typing"],
        }
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] == "neuronxcc"]:
            del sys.modules[name]
        sys.modules.update(before)
