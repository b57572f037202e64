"""What a kernel's text declares tunable, in any language: read, and changed, as text.

    BLOCK = 512
    TUNABLES = {"BLOCK": (128, 256, 512)}

at module level. What is declared in another form is left alone, and named.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass

from accelopt_core.candidate import parsed

DECLARATION = "TUNABLES"


@dataclass(frozen=True)
class Tunable:
    name: str
    value: int
    legal: tuple[int, ...]
    line: int
    columns: tuple[int, int]
    """Of the literal, in bytes of its line, as `ast` counts them."""


@dataclass(frozen=True)
class Declared:
    tunables: tuple[Tunable, ...]
    unusable: tuple[str, ...]
    """What is declared and cannot be changed, with the reason; one line each."""


def declared_tunables(source: str) -> Declared:
    """Nothing for a text that is not Python, or declares nothing."""
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Declared((), ())
    values = [(target.id, node.value) for node in tree.body if isinstance(node, ast.Assign)
              for target in node.targets if isinstance(target, ast.Name)]  # fmt: skip
    declarations = [value for name, value in values if name == DECLARATION]
    if not declarations:
        return Declared((), ())
    if len(declarations) > 1 or not isinstance(declarations[0], ast.Dict):
        return Declared((), (f"{DECLARATION} must be one dictionary literal",))
    bound = Counter(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    found, unusable = [], []
    for key, each in zip(declarations[0].keys, declarations[0].values):
        name = key.value if isinstance(key, ast.Constant) else None
        if not isinstance(name, str):
            unusable.append(f"{DECLARATION} must map names (string literals) to tuples of integers")
            continue
        literals = [value for target, value in values if target == name]
        legal = _integers(each)
        literal = literals[0] if literals else None
        if not legal:
            unusable.append(f"{name} has no literal tuple of integers as its legal values")
        elif len(literals) != 1 or bound[name] != 1:
            unusable.append(f"{name} is not assigned once, at module level")
        elif isinstance(literal, ast.Constant) and type(literal.value) is int and literal.end_lineno == literal.lineno:
            columns = literal.col_offset, literal.end_col_offset or literal.col_offset
            found.append(Tunable(name, literal.value, legal, literal.lineno, columns))
        else:
            unusable.append(f"{name} is not a literal integer")
    return Declared(tuple(found), tuple(unusable))


def with_value(source: str, tunable: Tunable, value: int) -> str:
    """The same text with another literal."""
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", source)  # Python's: `str.splitlines` ends them at form feeds too
    line = lines[tunable.line - 1].encode()
    begin, end = tunable.columns
    lines[tunable.line - 1] = (line[:begin] + str(value).encode() + line[end:]).decode()
    return "".join(lines)


def _integers(node: ast.expr) -> tuple[int, ...]:
    """Of a tuple or list of integer literals; empty for anything else."""
    if not isinstance(node, (ast.Tuple, ast.List)):
        return ()
    values = [each.value for each in node.elts if isinstance(each, ast.Constant) and type(each.value) is int]
    return tuple(values) if len(values) == len(node.elts) else ()
