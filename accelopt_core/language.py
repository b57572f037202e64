"""What a kernel is written in: all that the loop, the judge and a model must be told of a language.

A language is data and pure functions of text. What compiles and times its kernels is a `Toolchain`, what the machine
can do a `MachineModel`; both are of one language.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Finding:
    """Something in a kernel's text that a rule speaks against."""

    rule: str
    line: int
    message: str

    def describe(self) -> str:
        return f"line {self.line}: {self.message} ({self.rule})"


class Language(Protocol):
    @property
    def key(self) -> str:
        """`Task.language`, `--language`, and the folder below prompts/ with what a model is taught of it."""
        ...

    @property
    def name(self) -> str:
        """For people, e.g. `NKI`."""
        ...

    @property
    def core(self) -> str:
        """What a kernel runs on one of, e.g. `NeuronCore`."""
        ...

    @property
    def several_cores(self) -> str:
        """How a kernel asks for several of them, with `{cores}` in it; empty where it cannot."""
        ...

    @property
    def machines(self) -> tuple[str, ...]:
        """That kernels can be compiled for where no device says what it is (`--machine`); the first without a word."""
        ...

    @property
    def packages(self) -> frozenset[str]:
        """Whose import tells that a file is written in it."""
        ...

    @property
    def entry_points(self) -> tuple[str, ...]:
        """Names under which a file may expose its kernel, in order of preference, where its user names none."""
        ...

    @property
    def marked(self) -> str:
        """Which functions are kernels, for people, e.g. `that nki.jit decorates`."""
        ...

    def kernels(self, source: str) -> list[str]:
        """Functions of the file that may be meant, in its order. Raises what reading Python does."""
        ...

    def peaks(self, machine: str) -> str:
        """What one core of a machine (`TargetInfo.machine`) can do at most, in one line; empty where nobody knows."""
        ...

    def forbidden(self, source: str, neighbours: frozenset[str] = frozenset()) -> list[Finding]:
        """What no kernel needs and a proposed one may not have, in the order of lines.

        Text that cannot be read gives none, since it does not compile. `neighbours`: modules and packages of the
        user's that the kernel may import.
        """
        ...

    def notes(self, source: str) -> list[Finding]:
        """What some compilers of it reject, although here it may run."""
        ...

    def operators(self, source: str) -> tuple[str, ...]:
        """What it computes with, sorted: the words by which memory finds kin. Empty for what cannot be read."""
        ...
