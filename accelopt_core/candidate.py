"""What a round produces: a Plan, the Candidate that carries it out, and the Attempt that says what became of it.

`parsed` and `source_hash` are how the text of any kernel is read and told from another.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice, product

from accelopt_core.evaluation import Bottleneck, Evaluation, Measured, Predicted
from ka_extensions.bandit import Spent
from ka_extensions.canonical_source import text_hash, tree_hash
from ka_extensions.divergence_guard import Decision
from ka_extensions.outcome import Outcome
from ka_extensions.reflexion import Reflexion


@dataclass(frozen=True)
class Plan:
    """One change, and what it is expected to buy, written down before it is tried."""

    id: str
    title: str
    """The change in one line."""
    technique: str
    """A short stable name, e.g. `hoist-invariant-load`; the key under which memory files it."""
    bottleneck: Bottleneck
    expected_gain_us: float
    """Microseconds the change should take off the parent's latency."""
    rationale: str
    details: str = ""
    """What the executor needs to carry it out."""
    parent_id: str | None = None
    """The measured candidate it changes; None: the one that the round starts from."""
    by_tool: bool = False
    """Carried out without a model, so that there is one way to write it and no sample to draw."""
    proposer: str = ""
    """Who made it, where several take turns."""
    follows: tuple[str, ...] = ()
    """Keys of the experiences that it goes by."""

    def __post_init__(self) -> None:
        if not self.title.strip():
            raise ValueError(f"plan {self.id}: the title is empty")
        if not self.technique.strip():
            raise ValueError(f"plan {self.id}: the technique is empty")
        if not self.expected_gain_us >= 0:
            raise ValueError(f"plan {self.id}: expected gain {self.expected_gain_us} µs is not >= 0")


@dataclass(frozen=True)
class Candidate:
    """One kernel source and where it came from."""

    id: str
    source: str
    parent_id: str | None = None
    plan_id: str | None = None

    @property
    def content_hash(self) -> str:
        return source_hash(self.source)


@dataclass(frozen=True)
class Attempt:
    """One candidate of one round, or none where no kernel was written, and what became of it."""

    round: int
    number: int
    """1 for the first of its lane in the round, 2 and up for repairs."""
    parent_id: str
    plan: Plan | None
    candidate: Candidate | None
    evaluation: Evaluation | None
    outcome: Outcome
    """The evaluation's kind, or the verdict once a latency is decided on; without a kernel, what there was instead."""
    summary: str
    """One line a person or a planner can read."""
    lane: str = ""
    """Which of the candidates that the round tried side by side; empty where it tried one."""
    lanes: int = 1
    """How many there were: the round is complete when each has its decision."""
    decision: Decision | None = None
    """On the last attempt of its lane only."""
    reflexion: Reflexion | None = None
    last_check: Evaluation | None = None
    """Of a winner that failed it: what the check came to, filed with the attempt once more."""
    dropped_after: int = 0
    """Of a winner that failed its last check: the last complete round by then; later ones know it as wrong."""
    predicted: Predicted | None = None
    """Of a kernel for a device what the simulated machine said first; None where it could not, or was not asked."""
    proposer: str = ""
    """Who was to make it, where several take turns; also where no plan came of it."""
    spent: Spent | None = None
    """What its lane took, where several proposers take turns: on the last attempt of its lane only."""

    @property
    def id(self) -> str:
        """The candidate's, or what it would have been."""
        return self.candidate.id if self.candidate is not None else attempt_id(self.round, self.lane, self.number)

    @property
    def technique(self) -> str:
        return self.plan.technique if self.plan is not None else ""

    @property
    def title(self) -> str:
        return self.plan.title if self.plan is not None else ""

    @property
    def measured(self) -> Measured | None:
        return self.evaluation if isinstance(self.evaluation, Measured) else None

    @property
    def latency_us(self) -> float | None:
        return self.measured.latency_us if self.measured is not None else None

    @property
    def is_open(self) -> bool:
        """Others of its round were sent to the device in its place: it is as untried as before."""
        return self.outcome is Outcome.OUTRANKED

    @cached_property
    def content_hash(self) -> str:
        """The candidate's; of the message where there is none, so that the same failure is known again."""
        return self.candidate.content_hash if self.candidate is not None else source_hash(self.summary)


LETTERS = "abcdefghijklmnopqrstuvwxyz"
MOST_AT_ONCE = len(LETTERS)
MOST_LANES = len(LETTERS) ** 2


def lane_names(count: int) -> tuple[str, ...]:
    """In alphabetical order: none for a single lane, letters for several, two of them where one does not suffice."""
    if count == 1:
        return ("",)
    if count <= len(LETTERS):
        return tuple(LETTERS[:count])
    return tuple(map("".join, islice(product(LETTERS, repeat=2), count)))


def attempt_id(round: int, lane: str, number: int) -> str:
    return f"r{round:03d}{lane}t{number}"


@lru_cache(maxsize=1024)
def source_hash(source: str) -> str:
    """Hash of the code without comments, formatting and docstrings, the same in every Python.

    Text that does not parse is hashed as it stands, so that a repeated broken reply is recognised too.
    """
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text_hash(source)
    for node in _statements(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            body = node.body
            if (
                body
                and isinstance(body[0], ast.Expr)
                and isinstance(body[0].value, ast.Constant)
                and isinstance(body[0].value.value, str)
            ):
                node.body = body[1:] or [ast.Pass()]
    return tree_hash(tree, source)


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """The module and all that has statements inside, without what is in expressions: most nodes are there."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(node, name, None)
            if isinstance(inside, list):
                waiting += inside


PARSING = threading.RLock()
"""Held while anything in this process parses Python; also around code that does and cannot know of this.

CPython up to 3.11 counts the depth of a syntax tree under construction in one place for all threads: two at once can
end in `SystemError: AST constructor recursion depth mismatch` (python/cpython issue 106905).
"""


def parsed(source: str, filename: str = "<kernel>") -> ast.Module:
    """Reads Python without running it. Raises what `ast.parse` does: SyntaxError, ValueError, RecursionError,
    MemoryError."""
    with PARSING:
        return ast.parse(source, filename)
