"""What is submitted to an engine, and what an engine is: the one seam between this program and where it works.

Everything that is submitted is a process of this program's own tree: one that is started for the occasion (`Command`),
or one that stays and answers line by line (`Service`). So a judge is the same process here, over SSH and on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

WORK, SESSION, PARENT = "{work}", "{session}", "{parent}"
"""In a command's `argv`: its own folder; the folder that all commands of a session share on one node; the id of the
process that starts it."""

TRIES = 3
"""A command whose worker is lost under it is carried out again, at most so often in all."""


@dataclass(frozen=True)
class Command:
    """A process that is started for this, and what it leaves."""

    argv: tuple[str, ...]
    """For Python: `("-m", "infra.judging.judge", ...)`."""
    limit_s: float
    """After so long it is ended with all that it started."""
    input: str = ""
    """A line for its standard input."""
    loads: tuple[str, ...] = ()
    """Modules that it needs; `argv` is `-m` with the first of them, which has `main(arguments)`. Where processes can be
    forked, it is forked from one that has loaded them."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Text by name, in its folder before it starts."""
    collect: str = ""
    """Name of the file in its folder that is its result; without it, what it prints is."""
    session: str = ""
    """Letters and digits; commands of one session share a folder. Without it there is none."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside the few variables that every judge sees."""

    def __post_init__(self) -> None:
        if self.loads and self.argv[:2] != ("-m", self.loads[0]):
            raise ValueError(f"what is forked runs {self.loads[0]}, and not {' '.join(self.argv[:2])}")


@dataclass(frozen=True)
class Placement:
    """Where a command may be carried out."""

    node: str = ""
    """On the node of this id and no other."""
    neuron_cores: int = 0
    """On a group of so many NeuronCores; 0: on any CPU."""


ANYWHERE = Placement()


@dataclass(frozen=True)
class Completed:
    """What a command came to."""

    status: int | None
    """Exit status, negative for a signal; None where nobody knows, since its worker was lost."""
    result: str | None
    """None where it left none."""
    last_words: str
    """The last line of its stderr, or what became of its workers."""
    late: bool
    """It was ended at its limit."""
    seconds: float
    """That it ran, on the clock of where it ran; what it waited for a place is not in it."""
    node: str = ""
    """The id of the node; empty on this machine."""
    where: str = ""
    """For people: host and process."""
    versions: str = ""
    """For people: of the node's Python and packages; empty on this machine."""

    @property
    def is_lost(self) -> bool:
        """Its worker died under it, as often as it was tried."""
        return self.status is None and not self.late


@dataclass(frozen=True)
class Node:
    """One machine of an engine."""

    id: str
    host: str
    address: str
    cpus: float
    neuron_cores: float
    memory_bytes: int
    object_store_bytes: int


OnLine = Callable[[str], None]
"""Each line that a command prints, and before them, prefixed with NOTE, what became of it on the way."""

NOTE = "note: "
ON = "on "
"""Behind NOTE, where it is being carried out."""


class Service(Protocol):
    """A process that stays, and answers a line of JSON with a line of JSON."""

    @property
    def is_one_process(self) -> bool:
        """Is it the same that answers next time?"""
        ...

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Raises TargetError where it can answer no more."""
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    """May be used from several threads at once. All that it cannot do is a TargetError of one line."""

    @property
    def places(self) -> int:
        """Processes that can be at work at once; at least 1. Raises TargetError."""
        ...

    def carry_out(self, command: Command, on_line: OnLine, placement: Placement = ANYWHERE) -> Completed:
        """Raises TargetUnreachable when there is nowhere to do it, or the engine was closed meanwhile, and
        TargetMisconfigured where a node cannot."""
        ...

    def begin(self) -> None:
        """Has it ready, where that takes a while. Raises TargetUnreachable and TargetMisconfigured."""
        ...

    def open(self, what: str, argv: tuple[str, ...], first: Mapping[str, Any]) -> Service:
        """A process that stays. what: for messages; first: goes with the first question that any such process gets."""
        ...

    def close(self) -> None:
        """Ends all that is under way."""
        ...
