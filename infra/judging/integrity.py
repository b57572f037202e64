"""Whether a candidate changed the tracer it was traced by: every function of the simulator before and after.

A tripwire with a clear message, inside the candidate's own process. What a forged program could gain is bounded
elsewhere: the judge checks every rule again on loading, computes the outputs and the time itself, and accepts only
instructions whose line in the candidate's source could have issued them.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import types
from collections.abc import Iterator
from typing import Any

Snapshot = dict[str, tuple[object, ...]]
"""Dotted name -> the objects that make it what it is; held, so that no other can take their address."""


def snapshot() -> Snapshot:
    """Of every function and class of `nki_sim`, all of its modules imported first."""
    import nki_sim

    for module in pkgutil.walk_packages(nki_sim.__path__, "nki_sim."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return dict(_everything())


def changed_since(before: Snapshot) -> list[str]:
    """Names of what was replaced, removed or rewritten."""
    now = dict(_everything())
    return sorted(name for name, parts in before.items() if not _same(parts, now.get(name, ())))


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other))


def _everything() -> Iterator[tuple[str, tuple[object, ...]]]:
    for name, module in sorted(sys.modules.items()):
        if name == "nki_sim" or name.startswith("nki_sim."):
            yield name, (module,)
            for attribute, value in sorted(vars(module).items()):
                yield from _parts(f"{name}.{attribute}", value, name)


def _parts(name: str, value: Any, home: str) -> Iterator[tuple[str, tuple[object, ...]]]:
    if isinstance(value, types.FunctionType):
        yield name, (value, value.__code__, value.__defaults__, value.__globals__)
    elif isinstance(value, type):
        yield name, (value,)
        if value.__module__ == home:
            for attribute, member in sorted(vars(value).items()):
                if callable(member) or isinstance(member, (property, staticmethod, classmethod)):
                    yield f"{name}.{attribute}", (member, getattr(member, "__code__", None))
    elif callable(value) or isinstance(value, types.ModuleType):
        yield name, (value,)
