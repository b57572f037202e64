"""Transforms whose every site is one instruction, known by the tile it concerns.

They differ in which instructions they look at, in what must hold and in what they write instead. Looking, checking
again before the change, and refusing are the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, KernelModule, Site, SiteGone
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement, read_kernel
from accelopt_core.transforms.syntax import parsed_statement

Found = TypeVar("Found")
"""What a legal site is: whatever the check came upon that the change needs."""


class InstructionTransform(ABC, Generic[Found]):
    name: str
    addresses: frozenset[Cause]
    gone: str
    """What a kernel lacks that has no such site."""

    @abstractmethod
    def describe(self) -> str: ...

    @abstractmethod
    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        """Instructions of the right form, each with its site's key."""

    @abstractmethod
    def check(self, code: KernelCode, key: str, instruction: Statement) -> Found:
        """Raises IllegalSite."""

    @abstractmethod
    def site(self, code: KernelCode, key: str, instruction: Statement, found: Found) -> Site: ...

    @abstractmethod
    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: Found) -> cst.Module: ...

    def passed_over(self, code: KernelCode) -> Iterator[tuple[str, Statement, str]]:
        """Instructions of the right kind in a form that is none of `candidates`: a key, and what the form is."""
        yield from ()

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        sites = []
        for key, instruction in self.candidates(code):
            try:
                found = self.check(code, key, instruction)
            except IllegalSite as error:
                context.refuse(self.name, key, instruction.line, error, concerned(code, instruction))
            else:
                sites.append(self.site(code, key, instruction, found))
        for key, instruction, why in self.passed_over(code):
            context.refuse(self.name, key, instruction.line, IllegalSite(why), concerned(code, instruction))
        return tuple(sites)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        instruction = dict(self.candidates(code)).get(key)
        if instruction is None:
            raise SiteGone(f"{key}: the kernel {self.gone} of that name")
        return self.rewritten(code, key, instruction, self.check(code, key, instruction))


def written_by(code: KernelCode, operation: str) -> Iterator[tuple[str, Statement]]:
    """Every such instruction that writes a tile given by its bare name, with that name."""
    for statement in code.statements():
        if statement.kind is Kind.INSTRUCTION and statement.operation == operation:
            dst = code.argument(statement, "dst", 0)
            if isinstance(dst, cst.Name):
                yield dst.value, statement


def parts_written(code: KernelCode, operation: str) -> Iterator[tuple[str, Statement, str]]:
    """Every such instruction that writes something else than a tile by its bare name, as `passed_over` has it."""
    for statement in code.statements():
        if statement.kind is Kind.INSTRUCTION and statement.operation == operation:
            dst = code.argument(statement, "dst", 0)
            if dst is not None and not isinstance(dst, cst.Name):
                text = code.module.code_for_node(dst)
                yield text, statement, f"{operation} writes {text}, which is no whole tile by its name"


def concerned(code: KernelCode, instruction: Statement) -> set[int]:
    """Lines of the instructions that write or read what it writes: those that change with it."""
    buffers = code.changed_by(instruction)
    users = [s for s in code.statements() if s.body is None and s.kind is Kind.INSTRUCTION]
    return {s.line for s in users if buffers & (code.roots_of(s.uses | s.written))}


def counted(named: Iterator[tuple[str, Statement]]) -> Iterator[tuple[str, Statement]]:
    """Keys that tell instructions of one tile apart: the second is `tile#2`."""
    seen: dict[str, int] = {}
    for name, statement in named:
        seen[name] = number = seen.get(name, 0) + 1
        yield (name if number == 1 else f"{name}#{number}"), statement


def instead_of(code: KernelCode, statement: Statement, lines: list[str], then: cst.CSTNode | None = None) -> cst.Module:
    """The module with a statement replaced by lines of code, and `then` after them; its comments stay before them."""
    made: list[cst.CSTNode] = [parsed_statement(line) for line in lines]
    made[0] = made[0].with_changes(leading_lines=getattr(statement.node, "leading_lines", ()))
    if then is not None:
        made.append(then.with_changes(leading_lines=()))
    block = statement.block.node
    at = list(block.body).index(statement.node)
    return code.changed({block: block.with_changes(body=[*block.body[:at], *made, *block.body[at + 1 :]])})
