"""Why an input kernel is refused, in words of the user's own files: which line of which, and what else may be wrong."""

from __future__ import annotations

import re

from accelopt_core.evaluation import CompileFailed, Crashed, Evaluation, Incorrect, explain

_AS_COMPILED = re.compile(r" \((?:<unknown>|[^()\s]*candidate\.py), line \d+\)")
"""Python's own word on where: the file as the judge calls it."""


def rejected(evaluation: Evaluation, kernel: str, reference: str, *, alone: bool, rewritten: bool = False) -> str:
    """One line. `alone`: the kernel imports no neighbours; `rewritten`: lines are of what --migrate made of it;
    `reference`: empty where it is a function of the caller's."""
    match evaluation:
        case CompileFailed(message=message, line=line):
            return f"{_place(kernel, line, rewritten)}: does not compile: {_AS_COMPILED.sub('', message)}"
        case Crashed(step=step, message=message, line=line):
            said = _AS_COMPILED.sub("", message)
            return f"{_place(kernel, line, rewritten)}: crashed while it was to {step.value}: {said}"
        case Incorrect(failure=failure):
            shown = f"python3 -m nki_sim run {kernel} --problem {reference}"
            runs = alone and reference
            how = f"`{shown}` shows what each computes" if runs else "work out by hand the element that is named"
            named = f"its reference, {reference}," if reference else "its reference"
            other = "; --problem names another reference" if reference else ""
            return (
                f"{kernel} is wrong: {failure.describe()}; or the kernel is right and {named} is wrong or of another "
                f"problem: {how}{other}"
            )
        case _:
            return f"{kernel}: {explain(evaluation)}"


def _place(kernel: str, line: int | None, rewritten: bool) -> str:
    where = f"{kernel}:{line}" if line is not None else kernel
    return f"{where} (as it was migrated)" if rewritten and line is not None else where
