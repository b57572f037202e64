"""What a rule is: it names the places where it might apply, and changes a kernel at one of them or refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

from nki_sim.loop_ir.changes import Kernels, Path, everywhere, without_empty_loops
from nki_sim.loop_ir.tree import LoopKernel


@dataclass(frozen=True)
class Site:
    """One application of one rule to one kernel; means the same in its trees at other shapes."""

    rule: str
    path: Path
    arguments: tuple[int | str, ...] = ()
    what: str = ""
    """The change in one line."""
    line: int = 0

    @property
    def key(self) -> str:
        """Tells the sites of one rule in one kernel apart: `0.2.1`, `0.2.1:4`."""
        return ":".join([".".join(map(str, self.path)), *map(str, self.arguments)])


class Rule(Protocol):
    """Stateless. `name` is the technique under which memory files what came of it."""

    @property
    def name(self) -> str: ...

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        """Where it might apply, in program order; some of them will be refused."""
        ...


class Single(Rule, Protocol):
    """A rule that is applied to a kernel's tree at one shape, whatever it does at others."""

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        """Raises Refused: the reason, about data and hardware, in one line."""
        ...


class Composite(Rule, Protocol):
    """A rule that does as much as it can, which has to be the same at every shape."""

    def together(self, kernels: Kernels, site: Site) -> Kernels:
        """To one kernel's trees at several shapes. Raises Refused as `Single.apply` does."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """A rule with an application that costs nothing by itself, and that others need: a search begins with it."""

    def preparation(self, kernel: LoopKernel) -> Site: ...


@runtime_checkable
class TakesPasses(Protocol):
    """A rule that does several passes of the loop at its site's path at once: fewer are left to overlap."""

    @property
    def takes_passes(self) -> bool: ...


@runtime_checkable
class Last(Protocol):
    """A rule whose steps wait until no other gains: what else is done decides whether they do, and they stand in the
    way of it."""

    @property
    def comes_last(self) -> bool: ...


@runtime_checkable
class Balance(Last, Protocol):
    """A rule that moves work from one engine to another: worth it where the other one has time."""

    def moves(self, kernel: LoopKernel, site: Site) -> tuple[str, str]:
        """From which engine to which, by the names that a timeline's resources have."""
        ...


def applied(rule: Rule, kernels: Kernels, site: Site) -> Kernels:
    """At every shape; of loops that it left nothing to do, nothing stays. Raises Refused where one of them refuses."""
    if hasattr(rule, "together"):  # isinstance asks a protocol for all its names: a twentieth of a search's time
        return everywhere(without_empty_loops, cast(Composite, rule).together(kernels, site))
    assert hasattr(rule, "apply"), f"{rule.name} is no rule that can be applied"
    return everywhere(without_empty_loops, everywhere(cast(Single, rule).apply, kernels, site))
