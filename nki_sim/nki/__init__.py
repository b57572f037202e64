"""The importable stand-in for AWS's `nki` (see nki_sim.install)."""

from __future__ import annotations

from typing import Any

from nki_sim.errors import NotSupported
from nki_sim.nki import collectives, compiler, dtype, isa, language, simulator, tensor, typing
from nki_sim.nki.kernel import Kernel, cpu_simulate, jit, simulate
from nki_sim.nki.language.objects import NKIObject

_GONE = {
    "baremetal": "run it with nki.simulate(kernel)(...)",
    "benchmark": "time it with python -m nki_sim profile",
    "profile": "profile it with python -m nki_sim profile",
    "simulate_kernel": "write nki.simulate(kernel)(...)",
    "trace": "write nki.jit",
}


def __getattr__(name: str) -> Any:
    if name in _GONE:
        raise NotSupported(f"nki.{name} is not in NKI from 0.2 on: {_GONE[name]}")
    raise NotSupported(f"module nki has no attribute {name!r}")


__all__ = [
    "Kernel",
    "NKIObject",
    "collectives",
    "compiler",
    "cpu_simulate",
    "dtype",
    "isa",
    "jit",
    "language",
    "simulate",
    "simulator",
    "tensor",
    "typing",
]
