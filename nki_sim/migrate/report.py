"""What a migration did, and what is left for a person: findings, their table, and the exit code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum


class Kind(str, Enum):
    REWRITTEN = "rewritten"
    PERSON = "needs a person"
    NOTE = "note"
    """Left as it is, with a reason: code of the host, or code that this run did not reach."""


@dataclass(frozen=True)
class Finding:
    """One thing at one line of the old file, by the name of its rule."""

    line: int
    rule: str
    text: str
    kind: Kind

    def __str__(self) -> str:
        return f"line {self.line}: {self.kind.value}: [{self.rule}] {self.text}"


@dataclass
class Migration:
    """The new source, and everything there is to say of it."""

    source: str
    findings: list[Finding] = field(default_factory=list)
    proof: str = ""
    """What running old and new side by side showed; empty where nothing was run."""
    proven: bool | None = None
    difference: float | None = None
    """The largest relative difference between old and new outputs."""

    @property
    def left(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind is Kind.PERSON]

    @property
    def done(self) -> bool:
        """Nothing is left to a person, and no run showed a difference."""
        return not self.left and self.proven is not False

    def exit_code(self) -> int:
        """0 done, 1 a person is needed (or the kernels differ)."""
        return 0 if self.done else 1

    def summary(self) -> str:
        """The closing table: how often each rule was applied or left, then the proof."""
        counts = Counter((finding.rule, finding.kind) for finding in self.findings)
        width = max([len(rule) for rule, _ in counts] or [4])
        lines = [f"{'rule':<{width}}  {'rewritten':>9}  {'left':>5}  {'notes':>5}"]
        for rule in dict.fromkeys(finding.rule for finding in self.findings):
            row = [counts[(rule, kind)] for kind in (Kind.REWRITTEN, Kind.PERSON, Kind.NOTE)]
            lines.append(f"{rule:<{width}}  {row[0]:>9}  {row[1]:>5}  {row[2]:>5}")
        if self.proof:
            lines.append(self.proof)
        lines.append("done" if self.done else f"not done: {len(self.left) or 'no'} places need a person")
        return "\n".join(lines)
