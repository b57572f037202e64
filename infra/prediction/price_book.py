"""What the planner's menu was priced at, in the run's folder: a resumed or replayed run shows the same menu."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from accelopt_core.catalogue.menu import Prices
from infra.journal import JournalError

FILE = "menu_prices.json"


class BadPriceBook(JournalError):
    """The file is there and cannot be read; move it away to have the menu priced anew."""


class PriceBookFile:
    """Prices by kernel. Reads every folder given, and writes into the first."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._path = folders[0] / FILE
        self._own = _read(self._path)
        self._known = {**{kernel: prices for folder in folders[1:] for kernel, prices in _read(folder / FILE).items()},
                       **self._own}  # fmt: skip

    def recall(self, kernel: str) -> Prices | None:
        return self._known.get(kernel)

    def keep(self, kernel: str, prices: Prices) -> None:
        self._own[kernel] = self._known[kernel] = dict(prices)
        draft = self._path.with_name(f"{FILE}.part")
        draft.write_text(json.dumps(self._own, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, self._path)


def _read(path: Path) -> dict[str, dict[str, float | None]]:
    try:
        book = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(kernel): {str(child): None if us is None else float(us) for child, us in prices.items()}
            for kernel, prices in book.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise BadPriceBook(f"{path}: {error}: move it away to have the menu priced anew") from error
