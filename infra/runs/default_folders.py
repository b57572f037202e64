"""Where what a user keeps lies by default: in a clone beside the program; installed, in folders of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DATA_VARIABLE = "XDG_DATA_HOME"
DATA_FOLDER = "nki-optimizer"


@dataclass(frozen=True)
class DefaultFolders:
    checkpoints: Path
    memory: Path
    """The file in it."""
    calibrations: Path
    model_benchmarks: Path


def is_installed(tree: Path) -> bool:
    """A clone has its pyproject.toml beside the program; what an installer laid down has not."""
    return not (tree / "pyproject.toml").is_file()


def default_folders(tree: Path, environment: Mapping[str, str], folder: Path) -> DefaultFolders:
    """Of the program in `tree`, for a user who is in `folder`. All absolute if `folder` is.

    An installed program writes nothing beside itself: others may share it, and the next release replaces it. Raises
    RuntimeError for a user without a home folder.
    """
    if not is_installed(tree):
        return DefaultFolders(
            tree / "checkpoints", tree / "optimization_memory" / "rewrites.json", tree / "calibrations",
            tree / "model_benchmarks",
        )  # fmt: skip
    named = Path(environment.get(DATA_VARIABLE) or "")
    base = named if named.is_absolute() else Path.home() / ".local" / "share"  # a relative one is to be ignored
    data = base / DATA_FOLDER
    return DefaultFolders(
        folder / "checkpoints", data / "rewrites.json", data / "calibrations", data / "model_benchmarks"
    )
