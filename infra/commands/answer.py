"""How a command ends: an exit status, a line for people, and one document where a script asked for it."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from infra.terminal.started_as import program, started_as

FINISHED, USAGE, BASELINE, UNREACHABLE, STOPPED = 0, 2, 3, 4, 5


class Answer:
    """The one document on standard output, where --json asks for it; all that people read goes to standard error."""

    def __init__(self, output: TextIO | None) -> None:
        self._output = output

    @property
    def wanted(self) -> bool:
        return self._output is not None

    def give(self, document: Any) -> None:
        if self._output is not None:
            from infra.documents.writing import as_json

            print(as_json(document), file=self._output)


def end(problem: object, status: int, answer: Answer) -> int:
    if answer.wanted:
        from nki_sim.commands.documents import ErrorDocument

        answer.give(ErrorDocument(started_as(str(problem)), status))
    return complain(problem, status)


def complain(problem: object, status: int) -> int:
    print(f"{program().removesuffix('.py')}: {started_as(str(problem))}", file=sys.stderr)
    return status
