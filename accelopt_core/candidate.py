"""What a round produces: a Plan, and the Candidate that carries it out; and how a candidate's text is read."""

from __future__ import annotations

import ast
import hashlib
import threading
from dataclasses import dataclass

from accelopt_core.evaluation import Bottleneck


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


def source_hash(source: str) -> str:
    """Hash of the code without comments, formatting and docstrings.

    Text that does not parse is hashed as it stands, so that a repeated broken reply is recognised too.
    """
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:16]
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            body = node.body
            if (
                body
                and isinstance(body[0], ast.Expr)
                and isinstance(body[0].value, ast.Constant)
                and isinstance(body[0].value.value, str)
            ):
                node.body = body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode("utf-8", "replace")).hexdigest()[:16]


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
