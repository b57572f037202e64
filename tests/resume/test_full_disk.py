"""A disk that fills up while a run writes: one line says so, and with room again `--resume` ends it as if nothing had
happened. A small file system of its own is filled for real, at every place that a run writes to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from accelopt_core.toolchain import ToolchainMissing
from infra.simulator.toolchain import SimulatorToolchain
from tests.infra.judging.test_trace_server import ARGUMENTS, SILU
from tests.resume.scripted_run import World
from tests.resume.test_kill_and_resume import asked, server, state, undisturbed

__all__ = ["server", "undisturbed"]  # fixtures
ENOUGH_KIB = 1 << 16
PAGE_KIB = 4


def _mount(path: Path, kib: int, *flags: str) -> bool:
    options = ",".join((*flags, f"size={kib}k"))
    return (
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(path)], capture_output=True).returncode == 0
    )


@contextmanager
def a_small_disk(disk: Path, kib: int) -> Iterator[None]:
    disk.mkdir()
    if os.geteuid() != 0 or not _mount(disk, kib):
        pytest.skip("only root may mount a small file system, and not in every container")
    try:
        yield
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@contextmanager
def on_a_small_disk(world: World, kib: int) -> Iterator[Path]:
    """Its runs and its memory, not its output."""
    disk = world.folder / "disk"
    with a_small_disk(disk, kib):
        (disk / "checkpoints").mkdir()
        (world.folder / "checkpoints").symlink_to(disk / "checkpoints")
        (world.folder / "memory.json").symlink_to(disk / "memory.json")
        yield disk


def test_a_full_temporary_folder_is_no_fault_of_the_kernel_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "tmp"
    monkeypatch.setattr("tempfile.tempdir", str(disk))
    with a_small_disk(disk, 4 << 10):
        toolchain = SimulatorToolchain("trn2")
        try:
            assert toolchain.compile(SILU, ARGUMENTS, 120)
            with open(disk / "others", "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
                while True:
                    file.write(bytes(1 << 12))
            with pytest.raises(ToolchainMissing, match=f"^{disk} is full.* set TMPDIR"):
                toolchain.compile(SILU, ARGUMENTS, 120)
            (disk / "others").unlink()
            assert toolchain.compile(SILU, ARGUMENTS, 120)
        finally:
            toolchain.close()


@pytest.mark.parametrize("stride", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_a_disk_that_fills_up_costs_a_run_nothing(stride, server, undisturbed, tmp_path) -> None:
    final, requests, evaluations = undisturbed
    pages, full = 3, 0
    while True:
        world = World(tmp_path / str(pages), server.url)
        where = f"with {pages} pages"
        with on_a_small_disk(world, pages * PAGE_KIB) as disk:
            since = len(server.requests)
            status = world.start()
            said = (world.folder / "output").read_text()
            if status == 0:
                break
            full += 1
            (line,) = [each for each in said.splitlines() if each.startswith("orchestrator: ")]
            assert status == 2 and "No space left on device: free some space, then run again" in line, where + said
            assert "Traceback" not in said, where
            assert _mount(disk, ENOUGH_KIB, "remount")
            assert world.start() == 0, where + (world.folder / "output").read_text()
            for name, value in state(world).items():
                assert value == final[name], f"{where}: {name}"
            again = sum((asked(server, since) - requests).values())
            repeated = world.evaluations - evaluations
            assert again + sum(repeated.values()) <= 1, f"{where}: only what found no room: {again} calls, {repeated}"
            assert not list(world.run.path.glob("**/.*.tmp")), where
        pages += stride
    assert full > 3, "it has been full at several places"
