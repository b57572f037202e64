"""Files of the user's, read and written; and the one folder they may lie in, for whom that is a rule.

A process that works for somebody who names files from afar calls `confine` first: from then on whatever is read here of
a kernel, its reference or its neighbours lies in that folder, whichever links are put in the way meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelopt_core.languages.plugin import plugins
from infra.tasks.reference_reader import TaskInvalid

MOST_BYTES = 1 << 20
"""Of one file that is named from afar. The longest kernel of the shipped seeds has a fortieth."""
_TREE = Path(__file__).resolve().parents[2]
SHIPPED = {"nki": _TREE / "nkibench_seeds", **{key: plugin.seeds for key, plugin in plugins().items()}}
"""Kernels and references that come with the program, by language."""
LONGEST_NAME = 1000
"""Characters of a path."""
LONGEST_PART = 200
"""Bytes of each name in it: file systems take 255, and a file that is being written has a longer one meanwhile."""


class Outside(TaskInvalid):
    """A file that is named lies outside of the folder, is no plain file, or is too large. One line."""


class Folder:
    """A folder, and the files in it: none that a link, `..` or a swapped folder would lead to elsewhere."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))

    def place(self, given: str) -> Path:
        """Where in the folder a path lies that was named, every link followed. Raises Outside."""
        _check_name(given, self.path)
        real = Path(os.path.realpath(self.path / given))
        if real != self.path and self.path not in real.parents:
            raise Outside(f"{given} lies outside of {self.path}, where all files must be")
        return real

    def file(self, given: str) -> Path:
        """As `place`, of a Python file that is there. Raises Outside."""
        real = self.place(given)
        if real.suffix != ".py":
            raise Outside(f"{given} is no Python file: its name must end in .py")
        try:
            mode = real.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise Outside(f"{given}: no such file in {self.path}") from None
        except OSError as error:
            raise Outside(f"{given}: {error.strerror}") from None
        if not stat.S_ISREG(mode):
            raise Outside(f"{given} is no plain file")
        return real

    def new_file(self, given: str, *, overwrite: bool) -> Path:
        """Where a Python file is to be written; its folder is there. Raises Outside."""
        _check_name(given, self.path)
        asked = Path(given)
        real = self.place(str(asked.parent)) / asked.name  # what the name itself is a link to is not asked
        if real.suffix != ".py":
            raise Outside(f"{given}: the name of the new file must end in .py")
        if not real.parent.is_dir():
            raise Outside(f"{given}: there is no folder {asked.parent} in {self.path}")
        if real.is_symlink() or (real.exists() and not real.is_file()):
            raise Outside(f"{given} is there, and no plain file")
        if real.exists() and not overwrite:
            raise Outside(f"{given} is there: name another file, or say overwrite")
        return real

    def read(self, path: Path) -> bytes:
        """Of a plain file. Raises Outside, and OSError for what cannot be read."""
        real = Path(os.path.realpath(path))
        if self.path not in real.parents:
            raise Outside(f"{path} lies outside of {self.path}, where all files must be")
        with self._folder_of(real) as folder:
            # A FIFO in its place must not keep us waiting for somebody to write to it.
            opened = os.open(real.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with open(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise Outside(f"{path} is no plain file")
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise Outside(f"{path} has more than {MOST_BYTES >> 10:,} KiB")
        return text

    def write(self, path: Path, text: str, *, overwrite: bool) -> None:
        """Whole or not at all. Raises Outside where something is there that may not be overwritten, and OSError."""
        if self.path not in path.parents:
            raise Outside(f"{path} lies outside of {self.path}, where all files must be")
        draft = f".{path.name}.{secrets.token_hex(4)}.part"
        with self._folder_of(path) as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(draft, flags, 0o644, dir_fd=folder), "w", encoding="utf-8") as file:
                file.write(text)
            try:
                if overwrite:  # a link in its place is replaced, not followed
                    os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
                else:
                    os.link(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                raise Outside(f"{path} is there: name another file, or say overwrite") from None
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=folder)

    @contextmanager
    def _folder_of(self, real: Path) -> Iterator[int]:
        """The folder that holds a file, opened step by step from this one: no step follows a link."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        opened = os.open(self.path, flags)
        try:
            for name in real.parent.relative_to(self.path).parts:
                inner = os.open(name, flags, dir_fd=opened)
                os.close(opened)
                opened = inner
            yield opened
        finally:
            os.close(opened)


def _check_name(given: str, folder: Path) -> None:
    if not given or len(given) > LONGEST_NAME or not given.isprintable():
        raise Outside(f"a path has 1 to {LONGEST_NAME} printable characters")
    if any(len(os.fsencode(part)) > LONGEST_PART for part in Path(given).parts):
        raise Outside(f"{given[:60]}...: a name in a path has at most {LONGEST_PART} bytes")
    if ".." in Path(given).parts:
        raise Outside(f"{given}: a path with `..` may lead out of {folder}: name files from that folder on")


_confined: tuple[Folder, ...] = ()


def confine(*folders: Path) -> None:
    """From here on this process reads no file of a user's outside of these folders."""
    global _confined
    _confined = tuple(map(Folder, folders))


def read_bytes(path: Path) -> bytes:
    """Raises OSError, and Outside in a process that is confined."""
    if not _confined:
        return path.read_bytes()
    real = Path(os.path.realpath(path))
    home = next((folder for folder in _confined if folder.path in real.parents), _confined[0])
    return home.read(path)


def read_text(path: Path) -> str:
    """As UTF-8, with or without a mark. Raises OSError, UnicodeDecodeError and, where confined, Outside."""
    return read_bytes(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
