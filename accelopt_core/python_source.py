"""Reading Python without running it, from several threads.

CPython up to 3.11 counts the depth of a syntax tree under construction in one place for all threads: two at once can
end in `SystemError: AST constructor recursion depth mismatch` (python/cpython issue 106905). So they take turns.
"""

from __future__ import annotations

import ast
import threading

PARSING = threading.RLock()
"""Held while anything in this process parses Python; also around code that does and cannot know of this."""


def parsed(source: str, filename: str = "<kernel>") -> ast.Module:
    """Raises what `ast.parse` raises: SyntaxError, ValueError, RecursionError, MemoryError."""
    with PARSING:
        return ast.parse(source, filename)
