"""A checkout on a host, with kernels of ours in it or as it was: `remote_agent/checkouts.py`, asked from here.

Every question may be asked again after a dropped link, and a host goes on where it was killed.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.model_benchmark.harness import Read
from infra.model_benchmark.placing import CannotPlace, Kernel, Place, placed
from infra.model_benchmark.verdict import PutBack
from infra.ssh.runner import SshRunner

Wanted = tuple[Kernel, Place]


@dataclass(frozen=True)
class InPlace:
    """What stands in a checkout in the place of its own files."""

    key: str
    """Of the kernels and their places (`key_of`)."""
    before: str
    """The checkout's digest when they were put in."""
    since: str
    files: tuple[str, ...]
    job: str
    """That worked with them last; empty where none has."""


@dataclass(frozen=True)
class Checkout:
    """`digest`: of its files as they are, of those that ours stand in for as they were."""

    base: str
    digest: str
    in_place: InPlace | None
    running: bool
    """A job works with it, as it is or with what is in place."""
    read: Read


def key_of(wanted: Sequence[Wanted]) -> str:
    said = [[kernel.source, kernel.function, str(place)] for kernel, place in wanted]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:24]


def files_of(wanted: Sequence[Wanted]) -> list[str]:
    """What of a checkout decides whether and how kernels go into it."""
    names = [name for _, place in wanted for name in (place.file, place.module_file, place.package_mark)]
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class Fitted:
    """Kernels as files for a checkout; `notes`: what the user should know, a line each."""

    key: str
    files: dict[str, bytes]
    notes: tuple[str, ...]


def fitted(wanted: Sequence[Wanted], there: Checkout) -> Fitted:
    """`there`: as it was looked at with `files_of(wanted)`, and without kernels of ours. Raises CannotPlace."""
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for kernel, place in wanted:
        text = files.get(place.file, there.read[place.file])
        if text is None:
            raise CannotPlace(f"{there.base} has no {place.file}")
        if place.module_file in files or there.read[place.module_file] is not None:
            raise CannotPlace(f"{place.module_file} is there already: two kernels in one place, or yours")
        made = placed(kernel, place, text, in_package=there.read[place.package_mark] is not None)
        files.update(made.files)
        notes += made.notes
    return Fitted(key_of(wanted), files, tuple(notes))


class Deployment:
    """Of one checkout, as it was named. Raises TargetUnreachable, and JobRefused for what the host will not do."""

    def __init__(self, runner: SshRunner, checkout: str) -> None:
        self._runner = runner
        self._checkout = checkout

    def look(self, read: Sequence[str] = ()) -> Checkout:
        request = {"op": "checkout_look", "checkout": self._checkout, "read": list(read)}
        *files, (said, _) = self._runner.ask(request, "checkout")
        contents: dict[str, bytes | None] = dict.fromkeys(read)
        contents.update((frame["name"], data) for frame, data in files)
        return Checkout(said["base"], said["digest"], _in_place(said["placed"]), said["running"], contents)

    def put_in(self, fitted: Fitted, there: Checkout) -> None:
        """Each kernel into its place; refused when the checkout is another by now than it was looked at."""
        request = {
            "op": "checkout_place", "checkout": self._checkout, "before": there.digest, "key": fitted.key,
            "files": [[name, len(data)] for name, data in fitted.files.items()],
        }  # fmt: skip
        self._runner.ask(request, "placed", b"".join(fitted.files.values()))

    def works(self, job: str) -> None:
        """That job is about to work with the checkout, as it is or with what is in place."""
        self._runner.ask({"op": "checkout_note_job", "checkout": self._checkout, "job": job}, "done")

    def put_back(self) -> PutBack | None:
        """Ends a job that works with it, and leaves the checkout as it was. None where nothing of ours is in it."""
        request = {"op": "checkout_put_back", "checkout": self._checkout, "ask": secrets.token_hex(8)}
        ((said, _),) = self._runner.ask(request, "back")
        back = _in_place(said["placed"])
        return PutBack(said["base"], back.files, tuple(said["kept"])) if back is not None else None


def _in_place(said: dict[str, Any] | None) -> InPlace | None:
    if said is None:
        return None
    files = tuple(each["path"] for each in said["files"])
    return InPlace(said["key"], said["before"], said["began"], files, said["job"])
