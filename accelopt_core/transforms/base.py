"""What a transform is: it lists the sites where it is legal, and applies one of them or refuses by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

import libcst as cst

from accelopt_core.evaluation import Bottleneck
from accelopt_core.task import ENTRY_POINTS


class TransformError(Exception):
    """A transform cannot do what it was asked; the message says which rule stands in the way."""


class IllegalSite(TransformError):
    """The change would alter what the kernel computes, or nobody can show that it would not."""


class SiteGone(TransformError):
    """The kernel does not contain the site (any more): analyze it again."""


class NotAKernel(TransformError):
    """The text is no Python, or holds no kernel in a form the transforms understand."""


@dataclass(frozen=True)
class Site:
    """One legal application of one transform to one kernel."""

    transform: str
    key: str
    """Identifies the site within the kernel whatever its line numbers, e.g. `lhs_tile/n`."""
    what: str
    """The change in one line."""
    line: int
    why_legal: str
    why_faster: str
    """One sentence: which cost it takes away."""
    predicted_gain_us: float | None = None
    """Simulated latency before minus after at the full shape; None until somebody priced it."""

    def priced(self, gain_us: float) -> Site:
        return replace(self, predicted_gain_us=gain_us)


@dataclass(frozen=True)
class AnalysisContext:
    """What is known of the kernel beside its text; a transform may skip sites that cannot pay."""

    bottleneck: Bottleneck | None = None
    fields: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Profile fields of the kernel, in the Neuron profiler's names and units; empty when unknown."""


@dataclass(frozen=True, eq=False)
class KernelModule:
    """A kernel's file as a tree; the same object is the same kernel."""

    tree: cst.Module
    entry_points: tuple[str, ...] = ENTRY_POINTS
    """What the kernel may be called, in order of preference."""


class Transform(Protocol):
    """Stateless. `name` is the technique under which memory files what came of it."""

    @property
    def name(self) -> str: ...

    def describe(self) -> str:
        """One sentence for people and for a language model's menu."""
        ...

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        """Every legal site, in source order. Raises NotAKernel."""
        ...

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        """The module changed at the site of that key; checks legality again.

        Raises SiteGone, IllegalSite or NotAKernel.
        """
        ...


def parse_kernel(source: str, entry_points: tuple[str, ...] = ENTRY_POINTS) -> KernelModule:
    """Raises NotAKernel when the text is not Python."""
    try:
        return KernelModule(cst.parse_module(source), entry_points)
    except (cst.ParserSyntaxError, RecursionError, ValueError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise NotAKernel(f"the kernel's text cannot be parsed: {text}") from error
