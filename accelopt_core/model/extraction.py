"""From a model's reply to a kernel: what was meant is found, what cannot be used is named.

A reply may hold a whole file in a fence, several fences, a fence that never ends, edits or a diff
against a kernel the model was shown, code inside JSON, or bare code between sentences.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accelopt_core.candidate import Attempt, parsed, source_hash
from accelopt_core.proposer import UnusableReply
from accelopt_core.task import ENTRY_POINTS

LONGEST_KERNEL = 400_000
"""Characters; no kernel is this long, but a runaway reply is."""
_PARSE_TRIES = 40
"""How often bare code is shortened in search of a part that parses."""

_THOUGHT = re.compile(r"^\s*<(think|thinking|reasoning)>.*?</\1>", re.S | re.I)
_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})[ \t]*([^\n`]*)$")
_CODE_START = re.compile(r"^(?:import |from \S+ import |@|def |class |\"\"\"|'''|#)")
_PYTHON_NAMES = frozenset({"python", "py", "python3", "nki"})
_CODE_KEYS = ("code", "kernel", "source", "python", "file", "content")


LINE_MARK = re.compile(r"[ \t]*#L\d+[ \t]*$", re.M)
"""At the end of some lines of a kernel as prompts show it."""


def extract_kernel(
    reply: str, *, bases: Sequence[str], truncated: bool = False, names: tuple[str, ...] = ENTRY_POINTS
) -> str:
    """The whole new kernel file that a reply means.

    `bases`: the kernels an edit may refer to, the likeliest first (the last failed try, then the parent).
    `names`: what the kernel may be called.
    Raises UnusableReply with what is missing, worded as an instruction for the next try.
    """
    text = LINE_MARK.sub("", strip_thought(reply))
    blocks = [block for block in fenced_blocks(text) if block[1].strip()]
    files = [code for _, code in blocks if defines_entry(code, names)]
    changed = [code for code in files if all(source_hash(code) != source_hash(base) for base in bases)]
    if changed or files:
        return _tidy((changed or files)[-1], reply)
    edited = _edited(text, blocks, bases, reply)
    if edited is not None:
        return _tidy(edited, reply)
    for code in _from_json(text):
        if defines_entry(code, names):
            return _tidy(code, reply)
    bare = _bare_code(text, names) if not blocks and not truncated else None
    if bare is not None:
        return _tidy(bare, reply)
    raise UnusableReply(_why_unusable(text, blocks, truncated, names), reply)


def check_kernel(
    source: str,
    *,
    parent: str,
    history: Sequence[Attempt] = (),
    failed: Sequence[str] = (),
    names: tuple[str, ...] = ENTRY_POINTS,
) -> None:
    """Raises UnusableReply unless the kernel is complete, keeps the parent's interface, and is new.

    `failed`: sources already tried and refused in this round.
    """
    if len(source) > LONGEST_KERNEL:
        raise UnusableReply(
            f"the kernel is {len(source):,} characters long, more than {LONGEST_KERNEL:,}: use loops", source
        )
    tree = _parsed(source)
    if isinstance(tree, str):
        raise UnusableReply(f"the kernel is not valid Python: {tree}; answer with the whole corrected file", source)
    entry = _entry(tree, names)
    if entry is None:
        raise UnusableReply(f"the file defines no {_either(names)} at its top level: keep the kernel's name", source)
    before = _parsed(parent)
    expected = _entry(before, names) if isinstance(before, ast.Module) else None
    if expected is not None and _parameters(entry) != _parameters(expected):
        raise UnusableReply(
            f"the kernel's parameters are ({', '.join(_parameters(entry))}) but must stay "
            f"({', '.join(_parameters(expected))}), in this order: the caller is fixed",
            source,
        )
    digest = source_hash(source)
    if digest == source_hash(parent):
        raise UnusableReply(
            "the kernel is the same code as the current kernel: carry out the plan's change, or the part of it "
            "that is possible",
            source,
        )
    if any(digest == source_hash(other) for other in failed):
        raise UnusableReply("the kernel is the same code as a try that just failed: change what failed", source)
    for attempt in history:
        if attempt.content_hash == digest and not attempt.is_open:
            raise UnusableReply(
                f"the kernel is the same code as the attempt of round {attempt.round} ({attempt.title!r}), which "
                f"came out as {attempt.outcome}: write something that has not been tried",
                source,
            )


def defines_entry(code: str, names: tuple[str, ...] = ENTRY_POINTS) -> bool:
    """Does it parse, and define the kernel at its top level?"""
    tree = _parsed(code)
    return isinstance(tree, ast.Module) and _entry(tree, names) is not None


def strip_thought(reply: str) -> str:
    """The reply without the reasoning that some local models print before it, with plain newlines."""
    text = reply.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")
    return _THOUGHT.sub("", text, count=1)


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Every fenced block as (language, content); one that never ends runs to the end of the text."""
    blocks: list[tuple[str, str]] = []
    language, fence, lines = "", "", list[str]()
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if not fence:
            if mark:
                fence, language, lines = mark.group(1), mark.group(2).strip().lower(), []
        elif mark and mark.group(1).startswith(fence) and not mark.group(2).strip():
            blocks.append((language, "\n".join(lines)))
            fence = ""
        else:
            lines.append(line)
    if fence:
        blocks.append((language, "\n".join(lines)))
    return blocks


# --- the ways a reply may hold a kernel ---------------------------------------------------------------


def _edited(text: str, blocks: list[tuple[str, str]], bases: Sequence[str], reply: str) -> str | None:
    """The first base to which all edits of the reply apply; None when it holds no edits."""
    inside = "\n".join(code for _, code in blocks)
    places = [inside, text]
    for looks_like, apply in ((looks_like_search_replace, apply_search_replace), (looks_like_diff, apply_diff)):
        place = next((place for place in places if looks_like(place)), None)
        if place is None:
            continue
        complaints: list[str] = []
        for base in bases:
            try:
                return apply(place, base)
            except EditFailed as error:
                complaints.append(str(error))
        raise UnusableReply(
            f"the edits do not fit the kernel: {complaints[0]}; answer with the whole kernel file instead", reply
        )
    return None


def _from_json(text: str) -> Iterator[str]:
    for candidate in (text, *(code for _, code in fenced_blocks(text))):
        try:
            document = json.loads(candidate, strict=False)
        except (json.JSONDecodeError, RecursionError):
            continue
        if isinstance(document, dict):
            for key in _CODE_KEYS:
                if isinstance(document.get(key), str):
                    code = document[key]
                    inner = fenced_blocks(code)
                    yield inner[-1][1] if inner else code


def _bare_code(text: str, names: tuple[str, ...]) -> str | None:
    """Code without a fence: from the first line that can begin a file up to the prose after it.

    Only unindented lines are cut off, so that a kernel that breaks off in the middle is never taken for
    a shorter one.
    """
    lines = [line for line in text.split("\n") if not _FENCE.match(line)]
    starts = [number for number, line in enumerate(lines) if _CODE_START.match(line)]
    for start in starts[:5]:
        chunk = lines[start:]
        for _ in range(_PARSE_TRIES):
            failing_line = _parse_error("\n".join(chunk))
            if failing_line is None:
                code = "\n".join(chunk)
                if defines_entry(code, names):
                    return code
                break
            cut = min(failing_line, len(chunk)) - 1
            if chunk[cut][:1].isspace() or not chunk[cut]:
                break
            chunk = chunk[:cut]
    return None


def _tidy(code: str, reply: str) -> str:
    source = code.strip("\n").replace("\u00a0", " ").replace("\u200b", "") + "\n"
    if "\x00" in source:
        raise UnusableReply("the kernel holds a NUL character: answer with plain Python text", reply)
    return source


def _why_unusable(text: str, blocks: list[tuple[str, str]], truncated: bool, names: tuple[str, ...]) -> str:
    if truncated:
        return "the reply was cut off at its length limit: answer with the kernel file only, without explanations"
    if not text.strip():
        return "the reply is empty: answer with the whole kernel file in one ```python block"
    code = [block for language, block in blocks if language.split(" ")[0] in _PYTHON_NAMES or not language]
    code = code or [block for _, block in blocks]
    if not code:
        return "the reply holds no code block: answer with the whole kernel file in one ```python block"
    best = max(code, key=len)
    error = _parsed(best)
    if isinstance(error, str):
        return f"the code block is not valid Python: {error}; answer with the whole corrected kernel file"
    name = _either(names)
    if "def " not in best:
        return f"the code block is only a fragment: answer with the whole kernel file, which must define {name}"
    return f"the code block defines no {name} at its top level: answer with the whole kernel file and keep that name"


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(f"`{name}`" for name in names)


# --- syntax --------------------------------------------------------------------------------------------


def _parsed(source: str) -> ast.Module | str:
    """The tree, or one line saying where and why there is none."""
    try:
        return parsed(source)
    except SyntaxError as error:
        lines = source.split("\n")
        line = lines[error.lineno - 1].strip() if error.lineno and error.lineno <= len(lines) else ""
        return f"{error.msg} at line {error.lineno}" + (f": `{line[:120]}`" if line else "")
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"


def _parse_error(source: str) -> int | None:
    """The line where parsing fails, counted from 1; None when it does not."""
    try:
        parsed(source)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError):
        return 1
    return None


def _entry(tree: ast.Module, names: tuple[str, ...]) -> ast.FunctionDef | ast.Assign | None:
    for name in names:
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                return node
    return None


def _parameters(entry: ast.FunctionDef | ast.Assign | None) -> list[str]:
    if not isinstance(entry, ast.FunctionDef):
        return []
    arguments = entry.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


_SEARCH = re.compile(r"^<{5,9} ?SEARCH.*$", re.M | re.I)
_EDIT = re.compile(
    r"^<{5,9} ?SEARCH[^\n]*\n(?P<old>.*?)^={5,9}[ \t]*\n(?P<new>.*?)^>{5,9} ?REPLACE[^\n]*$", re.M | re.S | re.I
)
_HUNK = re.compile(r"^@@.*$", re.M)


class EditFailed(Exception):
    """An edit does not fit the text it is meant for; the line says which and why."""


@dataclass(frozen=True)
class _Change:
    old: tuple[str, ...]
    new: tuple[str, ...]


def looks_like_search_replace(text: str) -> bool:
    return _SEARCH.search(text) is not None


def looks_like_diff(text: str) -> bool:
    if not _HUNK.search(text):
        return False
    return any(line.startswith(("+", "-")) and not line.startswith(("+++", "---")) for line in text.split("\n"))


def apply_search_replace(text: str, base: str) -> str:
    """Raises EditFailed when a block is malformed, or its search text is not there exactly once."""
    edits = [_Change(_lines(match["old"]), _lines(match["new"])) for match in _EDIT.finditer(text)]
    if len(edits) != len(_SEARCH.findall(text)):
        raise EditFailed(f"{len(_SEARCH.findall(text))} SEARCH markers but {len(edits)} complete SEARCH/REPLACE blocks")
    return _apply(edits, base, "SEARCH block")


def apply_diff(text: str, base: str) -> str:
    """Raises EditFailed when a hunk has no context or does not fit exactly one place."""
    hunks: list[_Change] = []
    old: list[str] = []
    new: list[str] = []
    inside = False

    def close() -> None:
        if inside and old != new:
            hunks.append(_Change(tuple(old), tuple(new)))
        old.clear()
        new.clear()

    for line in text.split("\n"):
        if line.startswith("@@"):
            close()
            inside = True
        elif line.startswith(("--- ", "+++ ", "diff --git", "index ")):
            close()
            inside = False
        elif not inside or line.startswith("\\"):
            continue
        elif line.startswith("+"):
            new.append(line[1:])
        elif line.startswith("-"):
            old.append(line[1:])
        elif line.startswith(" ") or not line:
            old.append(line[1:])
            new.append(line[1:])
        else:
            close()
            inside = False
    close()
    hunks = [_without_blank_ends(hunk) for hunk in hunks]
    if not hunks:
        raise EditFailed("the diff changes nothing")
    return _apply(hunks, base, "hunk")


def _apply(changes: list[_Change], base: str, what: str) -> str:
    lines = base.split("\n")
    for number, change in enumerate(changes, 1):
        if not any(line.strip() for line in change.old):
            raise EditFailed(f"{what} {number} has nothing to search for")
        places = _places(lines, change.old)
        if len(places) != 1:
            first = next(line.strip() for line in change.old if line.strip())
            found = "is not in the kernel" if not places else f"fits {len(places)} places"
            raise EditFailed(f"{what} {number} {found} (it begins with `{first[:80]}`)")
        at = places[0]
        lines[at : at + len(change.old)] = change.new
    return "\n".join(lines)


def _places(lines: list[str], wanted: tuple[str, ...]) -> list[int]:
    """Where the wanted lines stand, ignoring blanks at line ends."""
    have = [line.rstrip() for line in lines]
    want = [line.rstrip() for line in wanted]
    return [at for at in range(len(have) - len(want) + 1) if have[at : at + len(want)] == want]


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.split("\n")[:-1]) if text.endswith("\n") else tuple(text.split("\n")) if text else ()


def _without_blank_ends(hunk: _Change) -> _Change:
    """Blank context lines around a hunk are usually the reply's layout, not the kernel's."""
    old, new = list(hunk.old), list(hunk.new)
    while old and new and not old[-1].strip() and not new[-1].strip():
        old.pop()
        new.pop()
    while old and new and not old[0].strip() and not new[0].strip():
        old.pop(0)
        new.pop(0)
    return _Change(tuple(old), tuple(new))
