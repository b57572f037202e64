"""Where the catalogue found nothing to gain, in the run's folder: a resumed run leaves out what the run would have."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from accelopt_core.catalogue.rewrites import SiteName
from infra.journal import JournalError

FILE = "gainless_sites.json"


class BadGainlessFile(JournalError):
    """The file is there and cannot be read; move it away to have all sites priced anew."""


class GainlessFile:
    """Sites by the content of a measured kernel. Raises BadGainlessFile, and OSError where it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._known = _read(self._path)

    def of(self, kernel: str) -> frozenset[SiteName]:
        return self._known.get(kernel, frozenset())

    def add(self, kernel: str, sites: Iterable[SiteName]) -> None:
        before = self.of(kernel)
        self._known[kernel] = before | frozenset(sites)
        if self._known[kernel] == before:
            return
        document = {
            kernel: sorted([site.transform, site.key] for site in sites) for kernel, sites in self._known.items()
        }
        draft = self._path.with_name(f"{FILE}.part")
        draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, self._path)


def _read(path: Path) -> dict[str, frozenset[SiteName]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(kernel): frozenset(SiteName(str(transform), str(key)) for transform, key in sites)
            for kernel, sites in document.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadGainlessFile(f"{path}: {error}: move it away to have all sites priced anew") from error
