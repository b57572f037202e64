"""What a transform is: it lists the sites where it is legal, and applies one of them or refuses by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

import libcst as cst

from accelopt_core.evaluation import Bottleneck
from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.task import ALONE, ENTRY_POINTS, Surroundings
from accelopt_core.toolchain import ArgumentSpec, TensorArgument
from accelopt_core.transforms.printing import text_of_module


class TransformError(Exception):
    """A transform cannot do what it was asked; the message says which rule stands in the way."""


class IllegalSite(TransformError):
    """The change would alter what the kernel computes, or nobody can show that it would not."""


class NotPlain(IllegalSite):
    """The rule concerns how the kernel is written, not what it computes: a name bound more than once, a tile made in
    another block than where it is filled. The same kernel in normal form would not be refused for it."""


class NotOfItsKind(IllegalSite):
    """There is nothing here that the transform could change: told who asks for this very site, and nobody else."""


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
class Refusal:
    """A place that a transform looked at and left alone."""

    transform: str
    key: str
    """As of a `Site` there."""
    line: int
    why: str
    """The rule, in one line."""
    normalizing_helps: bool = False
    """The rule concerns how the kernel is written: in normal form it would not be refused for this."""
    lines: frozenset[int] = frozenset()
    """Every line that the change would have concerned."""


def _unheard(refusal: Refusal) -> None:
    """Most who ask for sites have no use for what is none."""


@dataclass(frozen=True)
class AnalysisContext:
    """What is known of the kernel beside its text; a transform may skip sites that cannot pay."""

    bottleneck: Bottleneck | None = None
    fields: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Profile fields of the kernel, in the Neuron profiler's names and units; empty when unknown."""
    arguments: tuple[tuple[ArgumentSpec, ...], ...] = ()
    """Of the kernel at each of its task's presets; empty when unknown."""
    told: Callable[[Refusal], None] = _unheard
    """Hears of every refusal, in no particular order."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of the arguments in their order, where all presets agree: `float32`; empty for what is no tensor."""
        found = []
        for alike in zip(*self.arguments):
            names = {each.dtype if isinstance(each, TensorArgument) else "" for each in alike}
            found.append(names.pop() if len(names) == 1 else "")
        return tuple(found)

    def refuse(self, transform: str, key: str, line: int, error: IllegalSite, lines: Iterable[int] = ()) -> None:
        if not isinstance(error, NotOfItsKind):
            plain = not isinstance(error, NotPlain)
            self.told(Refusal(transform, key, line, str(error), not plain, frozenset((line, *lines))))


@dataclass(frozen=True, eq=False)
class KernelModule:
    """A kernel's file as a tree; the same object is the same kernel."""

    tree: cst.Module
    entry_points: tuple[str, ...] = ENTRY_POINTS
    """What the kernel may be called, in order of preference."""
    parsed_from: str | None = None
    """The text of a tree that was parsed; None for one put together, in which one node may stand twice."""
    around: Surroundings = ALONE
    """The files that it imports."""

    @cached_property
    def text(self) -> str:
        return self.parsed_from if self.parsed_from is not None else text_of_module(self.tree)

    def changed(self, tree: cst.Module) -> KernelModule:
        return KernelModule(tree, self.entry_points, None, self.around)


class Transform(Protocol):
    """Stateless. `name` is the technique under which memory files what came of it."""

    @property
    def name(self) -> str: ...

    @property
    def addresses(self) -> frozenset[Cause]:
        """Which causes of gaps it may take away."""
        ...

    def describe(self) -> str:
        """One sentence for people and for a language model's menu."""
        ...

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        """Every legal site, in source order; `context.refuse` is told of all others. Raises NotAKernel."""
        ...

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        """The module changed at the site of that key; checks legality again.

        Raises SiteGone, IllegalSite or NotAKernel.
        """
        ...


def parse_kernel(
    source: str, entry_points: tuple[str, ...] = ENTRY_POINTS, around: Surroundings = ALONE
) -> KernelModule:
    """Raises NotAKernel when the text is not Python."""
    try:
        return KernelModule(cst.parse_module(source), entry_points, source, around)
    except (cst.ParserSyntaxError, RecursionError, ValueError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise NotAKernel(f"the kernel's text cannot be parsed: {text}") from error
