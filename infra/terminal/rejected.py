"""Why an input kernel is refused, in words of the user's own files: which line of which, and what else may be wrong."""

from __future__ import annotations

import re

from accelopt_core.evaluation import CheckFailure, CompileFailed, Crashed, Evaluation, Incorrect, explain
from accelopt_core.task import REFERENCE, PrecisionPolicy

_AS_COMPILED = re.compile(r" \((?:<unknown>|[^()\s]*candidate\.py), line \d+\)")
"""Python's own word on where: the file as the judge calls it."""


_NARROW = 0.01
"""Relative L2, or what one element is off of its value, below which 16 bits explain it: rounding the result alone to
bfloat16 gives 0.0017 and 0.0039."""


def rejected(
    evaluation: Evaluation,
    kernel: str,
    reference: str,
    *,
    alone: bool,
    rewritten: bool = False,
    precision: PrecisionPolicy = PrecisionPolicy.FLOAT32_FAITHFUL,
    shape: tuple[str, ...] = (),
) -> str:
    """One line. `alone`: the kernel imports no neighbours; `rewritten`: lines are of what --migrate made of it;
    `reference`: empty where it is a function of the caller's; `precision`: the task's;
    `shape`: as `--shape` named it."""
    match evaluation:
        case CompileFailed(message=message, line=line):
            return f"{_place(kernel, line, rewritten)}: does not compile: {_AS_COMPILED.sub('', message)}"
        case Crashed(step=step, message=message, line=line):
            said = _AS_COMPILED.sub("", message)
            return f"{_place(kernel, line, rewritten)}: crashed while it was to {step.value}: {said}"
        case Incorrect(failure=failure):
            narrow = may_be_narrow(failure, precision)
            narrow += "; " if narrow else ""
            shown = " ".join(
                [f"python3 -m nki_sim run {kernel} --problem {reference}", *(["--shape"] if shape else []), *shape]
            )
            runs = alone and reference
            how = f"`{shown}` shows what each computes" if runs else "work out by hand the element that is named"
            named = f"its reference, {reference}," if reference else "its reference"
            other = "; --problem names another reference" if reference else ""
            return (
                f"{kernel} is wrong: {failure.describe()}; {narrow}or the kernel is right and {named} is wrong or of "
                f"another problem: {how}{other}"
            )
        case _:
            return f"{kernel}: {explain(evaluation)}"


def may_be_narrow(failure: CheckFailure, precision: PrecisionPolicy) -> str:
    """What a reference must declare for a kernel of 16 bits, which float32's limits refuse; else empty."""
    distance = failure.rel_l2
    if distance is None and failure.expected and failure.got is not None:
        distance = abs(failure.got - failure.expected) / abs(failure.expected)
    is_own = failure.distribution == REFERENCE and distance is not None and distance < _NARROW
    if not is_own or precision is not PrecisionPolicy.FLOAT32_FAITHFUL:
        return ""
    return (
        'if it computes in or returns bfloat16, let the reference declare PRECISION = "bf16-allowed" and '
        "TOLERANCE = 5e-3 (docs/tasks.md)"
    )


def _place(kernel: str, line: int | None, rewritten: bool) -> str:
    where = f"{kernel}:{line}" if line is not None else kernel
    return f"{where} (as it was migrated)" if rewritten and line is not None else where
