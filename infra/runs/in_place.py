"""--in-place: the winner takes the place of the user's own kernel, after a copy of it, if it is still the same."""

from __future__ import annotations

from pathlib import Path

from infra.journal import JournalError, explained, replace_file


class KernelChanged(JournalError):
    """The user edited the file while the run went on; it is left alone."""


def write_back(kernel: Path, input_source: str, winner: str) -> Path:
    """Returns the path of the copy, `<kernel>.bak` or the next free name. Raises JournalError; then nothing changed."""
    with explained(kernel, "read"):
        current = kernel.read_bytes()
    if current.decode("utf-8-sig", "replace").splitlines() != input_source.splitlines():
        raise KernelChanged(f"{kernel} was changed while the run went on: it is left alone; merge the winner by hand")
    copy = _free_name(kernel)
    replace_file(copy, current)
    replace_file(kernel, winner)
    return copy


def _free_name(kernel: Path) -> Path:
    """An earlier copy is never overwritten: it may hold the only original."""
    copy = kernel.with_name(kernel.name + ".bak")
    number = 1
    while copy.exists():
        copy = kernel.with_name(f"{kernel.name}.bak.{number}")
        number += 1
    return copy
