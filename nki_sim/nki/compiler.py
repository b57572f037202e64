"""`nki.compiler` (NKI 0.7): how a kernel is to be compiled, for `nki.jit(compile_config=, specialization_config=)`.

The simulator heeds `nki_alloc_fallback` and `allow_nested_config_override`; the rest it takes and keeps, since they
choose passes of a compiler that it is not. Source: NKI's pages of nki.compiler, SDK 2.33.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from nki_sim.errors import NotSupported


class AddressRotation(Enum):
    """Whether the backend moves buffers to other addresses from pass to pass of a loop."""

    AUTO = "auto"
    """Those that it placed itself, and none that the kernel or NKI's own allocation did."""
    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True)
class CompileConfig:
    """Options of the compilation; None leaves the choice to the compiler, whose default no page says."""

    address_rotation: AddressRotation = AddressRotation.AUTO
    non_ssa_legalization: bool | None = None
    """The backend pass of that name on the kernel's memory locations."""
    dead_code_elim: bool | None = None
    """The kernel's memory locations may be dropped where nothing reads them."""
    barrier_check: bool | None = None
    """Check the barriers between the cores of a logical core."""
    nki_alloc_fallback: bool = True
    """Where a kernel does not fit on chip, let the compiler's own allocation try, which spills; False is an error."""
    prefetch_auto: bool = False
    """Reserve a ring of SBUF for loads ahead of their use."""


@dataclass(frozen=True)
class SpecializationConfig:
    """Options of the tracing."""

    allow_nested_config_override: bool = False
    """A kernel that is called in this one may have another configuration; it is traced under this one's, with a
    warning, instead of an error."""


def __getattr__(name: str) -> Any:
    raise NotSupported(
        f"nki.compiler.{name} is not in NKI 0.7: AddressRotation, CompileConfig and SpecializationConfig are; buffers "
        "are placed by address= or by the compiler"
    )


__all__ = ["AddressRotation", "CompileConfig", "SpecializationConfig"]
