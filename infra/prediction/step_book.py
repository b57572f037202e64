"""What the planner's menu was made of, in the run's folder: a resumed or replayed run shows the same menu."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from accelopt_core.catalogue.kernel_trees import SingleSteps
from infra.journal import JournalError
from infra.records import from_document, to_document

FILE = "menu_steps.json"


class BadStepBook(JournalError):
    """The file is there and cannot be read; move it away to have the menu priced anew."""


class StepBookFile:
    """Steps by kernel. Reads every folder given, and writes into the first."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._path = folders[0] / FILE
        self._own = _read(self._path)
        self._known = {**{kernel: steps for folder in folders[1:] for kernel, steps in _read(folder / FILE).items()},
                       **self._own}  # fmt: skip

    def recall(self, kernel: str) -> SingleSteps | None:
        return self._known.get(kernel)

    def keep(self, kernel: str, steps: SingleSteps) -> None:
        self._own[kernel] = self._known[kernel] = steps
        draft = self._path.with_name(f"{FILE}.part")
        document = {kernel: to_document(steps) for kernel, steps in self._own.items()}
        draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, self._path)


def _read(path: Path) -> dict[str, SingleSteps]:
    try:
        book = json.loads(path.read_text(encoding="utf-8"))
        return {str(kernel): from_document(SingleSteps, steps, FILE) for kernel, steps in book.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, JournalError) as error:
        raise BadStepBook(f"{path}: {error}: move it away to have the menu priced anew") from error
