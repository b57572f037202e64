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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Place:
    """A module's or a class's names, and what makes those that count what they are; held, so that no other object can
    take their address."""

    name: str
    """Dotted, with a dot at its end; empty for the modules themselves."""
    names: Mapping[str, Any]
    parts: Mapping[str, tuple[object, ...]]


Snapshot = tuple[_Place, ...]


def snapshot() -> Snapshot:
    """Of every function and class of `nki_sim`, all of its modules imported first."""
    import nki_sim

    for module in pkgutil.walk_packages(nki_sim.__path__, "nki_sim."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return tuple(_everything())


def changed_since(before: Snapshot) -> list[str]:
    """Names of what was replaced, removed or rewritten."""
    changed = []
    for place in before:
        now = place.names.get
        for name, parts in place.parts.items():
            value = now(name)
            if value is not parts[0] or (len(parts) > 1 and not _same(parts, _of_member(value))):
                changed.append(place.name + name)
    return sorted(changed)


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other))


def _everything() -> Iterator[_Place]:
    modules = {n: m for n, m in sorted(sys.modules.items()) if n == "nki_sim" or n.startswith("nki_sim.")}
    yield _Place("", sys.modules, {name: (module,) for name, module in modules.items()})
    for name, module in modules.items():
        found = {}
        for attribute, value in vars(module).items():
            if callable(value) or isinstance(value, types.ModuleType):
                found[attribute] = _of_member(value)
            if isinstance(value, type) and value.__module__ == name:
                yield _of_class(f"{name}.{attribute}.", value)
        yield _Place(f"{name}.", vars(module), found)


def _of_class(name: str, kind: type) -> _Place:
    own = vars(kind)
    counts = (property, staticmethod, classmethod)
    found = {at: _of_member(member) for at, member in own.items() if callable(member) or isinstance(member, counts)}
    return _Place(name, own, found)


def _of_member(value: Any) -> tuple[object, ...]:
    """The object, and of a function what it runs with."""
    if isinstance(value, types.FunctionType):
        return value, value.__code__, value.__defaults__, value.__globals__
    return (value,)
