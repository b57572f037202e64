"""Files that somebody names from afar: none outside of the folder, whatever is swapped in between two looks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.tasks import user_files
from infra.tasks.kernel_file import kernel_text, surroundings_of
from infra.tasks.seed_index import find_reference
from infra.tasks.user_files import Folder, Outside

PRIVATE = b"# what only its owner may read\n"
OWN = b"# a kernel\n"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "private.py").write_bytes(PRIVATE)
    (tmp_path / "work" / "inner").mkdir(parents=True)
    (tmp_path / "work" / "kernel.py").write_bytes(OWN)
    (tmp_path / "work" / "inner" / "kernel.py").write_bytes(OWN)
    return Folder(tmp_path / "work")


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """The two names change places all the time."""
    over, aside = threading.Event(), one.with_name("aside")

    def swap() -> None:
        while not over.is_set():
            for old, new in ((one, aside), (other, one), (aside, other)):
                os.rename(old, new)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("what", ["the file", "its folder"])
def test_no_swap_leads_a_reader_out(folder: Folder, what: str) -> None:
    """A file, or the folder it lies in, and a link to something outside change places while it is read."""
    outside = folder.path.parent
    if what == "the file":
        named, swapped = "kernel.py", folder.path / "kernel.py"
        (folder.path / "link.py").symlink_to(outside / "private.py")
        link = folder.path / "link.py"
    else:
        (outside / "elsewhere").mkdir()
        (outside / "elsewhere" / "kernel.py").write_bytes(PRIVATE)
        named, swapped, link = "inner/kernel.py", folder.path / "inner", folder.path / "link"
        link.symlink_to(outside / "elsewhere")
    came: dict[str, int] = {}
    with swapping(swapped, link):
        for _ in range(1000):
            try:
                text = folder.read(folder.file(named))
                assert text == OWN
                came["read"] = came.get("read", 0) + 1
            except (Outside, OSError) as error:
                came[type(error).__name__] = came.get(type(error).__name__, 0) + 1
    assert came.get("read") and came.get("Outside"), came


def test_a_folder_that_is_swapped_for_a_link_is_not_written_to(folder: Folder) -> None:
    place = folder.new_file("inner/new.py", overwrite=False)
    elsewhere = folder.path.parent / "elsewhere"
    elsewhere.mkdir()
    (folder.path / "inner").rename(folder.path / "aside")
    (folder.path / "inner").symlink_to(elsewhere)
    with pytest.raises(OSError):
        folder.write(place, "x = 1\n", overwrite=True)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_that_turns_up_where_a_file_is_to_be_is_never_followed(folder: Folder, overwrite: bool) -> None:
    place = folder.new_file("new.py", overwrite=overwrite)
    target = folder.path.parent / "private.py"
    place.symlink_to(target)
    if overwrite:
        folder.write(place, "x = 1\n", overwrite=True)
        assert not place.is_symlink() and place.read_text() == "x = 1\n"
    else:
        with pytest.raises(Outside, match="is there"):
            folder.write(place, "x = 1\n", overwrite=False)
    assert target.read_bytes() == PRIVATE
    assert not list(folder.path.glob(".*.part"))


def test_a_fifo_or_an_endless_file_does_not_keep_the_reader(folder: Folder) -> None:
    place = folder.file("kernel.py")
    with open(place, "wb") as file:
        file.truncate(1 << 34)
    with pytest.raises(Outside, match="more than 1,024 KiB"):
        folder.read(place)
    place = folder.file("kernel.py")
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(Outside, match="no plain file"):
        folder.read(place)


def test_a_confined_process_reads_kernels_references_and_neighbours_in_its_folder_alone(folder, monkeypatch) -> None:
    outside, work = folder.path.parent, folder.path
    monkeypatch.setattr(user_files, "_confined", ())
    (work / "helper.py").symlink_to(outside / "private.py")
    (work / "uses.py").write_text("import helper\n\n\ndef kernel(x):\n    return x\n")
    (work / "uses_reference.py").symlink_to(outside / "private.py")
    source = kernel_text(work / "uses.py")
    assert surroundings_of(work / "uses.py", source, None).neighbours, "a user's own link is followed"
    user_files.confine(work)
    for read in (
        lambda: kernel_text(outside / "private.py"),
        lambda: surroundings_of(work / "uses.py", source, None),
        lambda: find_reference(work / "uses.py"),
    ):
        with pytest.raises(Outside, match="outside"):
            read()
    assert kernel_text(work / "kernel.py").encode() == OWN
