"""How fast programs are timed: instructions per second of one core, as machine code and as plain Python.

python benchmarks/timing_speed.py [--against TREE]

TREE: a checkout of an older commit (git worktree add), whose simulator times its own form of the same programs as
machine code in a process of its own, in turns with this one; a program that it refuses has no ratio. Ratios are of
instructions per second: below 1, this tree is slower. Every timing is of a program that nothing is known of yet, in CPU
seconds; the best of three counts as plain Python, the best of fifteen as machine code.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROWS = ("adamw", "hoisted", "fully blocked", "loads inside", "row resident", "spilling")
"""The programs; the median is of the first five, which nothing is spilled in."""
WANTED_PER_S = 1_000_000
AS_PYTHON, AS_MACHINE_CODE = 3, 15
"""Timings of each program."""
KEPT_BY_PROGRAM = ("sites", "operand_rows", "operand_numbers", "operand_table", "writes", "uses", "last_use")


def made(name: str) -> Any:
    from benchmarks import calibration_kernels as kernels
    from benchmarks import device_matmuls as device

    return {
        "adamw": lambda: kernels.adamw(128),
        "hoisted": lambda: kernels.matmul_blocked(8192, 4096, 8192, 1, 1),
        "fully blocked": lambda: kernels.matmul_fully_blocked(8192, 4096, 8192, 8, 2, 8),
        "loads inside": lambda: kernels.matmul_loads_inside(8192, 4096, 8192),
        "row resident": lambda: device.tiled(8192, 2048, 8192, row_resident=True),
        "spilling": lambda: device.blocked(4096, 8192, 8192, 16, 2, 8),
    }[name]()


def per_s(program: Any) -> float:
    """Instructions of the kernel per CPU second, once."""
    from nki_sim.machine import TRN2

    schedule = import_module("nki_sim.timing.schedule" if find_spec("nki_sim.timing") else "nki_sim.schedule").schedule
    for name in KEPT_BY_PROGRAM:
        program.__dict__.pop(name, None)
    began = time.process_time()
    schedule(program, TRN2)
    return len(program) / (time.process_time() - began)


def serve(tree: str) -> None:
    """For the older tree: a program a line, and what it makes of it."""
    sys.path.insert(0, tree)
    import nki_sim
    from nki_sim.errors import NkiError

    assert Path(nki_sim.__file__).is_relative_to(Path(tree).resolve()), nki_sim.__file__
    known: dict[str, Any] = {}
    with import_module("nki_sim.machine_code" if find_spec("nki_sim.machine_code") else "nki_sim.compiled").using(True):
        for line in sys.stdin:
            name = json.loads(line)
            try:
                known[name] = known.get(name) or made(name)
                print(json.dumps(per_s(known[name])), flush=True)
            except NkiError as error:
                print(json.dumps(str(error)[:60]), flush=True)


class Older:
    def __init__(self, tree: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(tree.resolve())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def per_s(self, name: str) -> float:
        """0 where it refuses."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(name) + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        return said if isinstance(said, float) else 0.0

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main(against: Path | None, names: list[str]) -> int:
    sys.path.insert(0, str(ROOT))
    from nki_sim import machine_code

    older = Older(against) if against else None
    print(f"{'program':<16}{'instructions':>13}{'Python/s':>12}{'compiled/s':>12}{'older/s':>12}  ratios")
    rates: dict[str, float] = {}
    for name in names:
        program = made(name)
        best = {"python": 0.0, "compiled": 0.0, "older": 0.0}
        for turn in range(AS_MACHINE_CODE):
            for path in (False, True) if turn < AS_PYTHON else (True,):
                with machine_code.using(path):
                    which = "compiled" if path else "python"
                    best[which] = max(best[which], per_s(program))
            if older is not None:
                best["older"] = max(best["older"], older.per_s(name))
        ratios = [f"{best[each] / best['older']:.2f}" for each in ("python", "compiled") if best["older"]]
        print(
            f"{name:<16}{len(program):>13,}{best['python']:>12,.0f}{best['compiled']:>12,.0f}"
            f"{best['older']:>12,.0f}  {' '.join(ratios) or '-'}",
            flush=True,
        )
        rates[name] = best["compiled"]
    if older is not None:
        older.close()
    median = statistics.median([rates[name] for name in names if name in ROWS[:5]] or [0.0])
    print(f"median of those that spill nothing, compiled: {median:,.0f} instructions/s (wanted {WANTED_PER_S:,})")
    return int(median < WANTED_PER_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", type=Path, help="a checkout of an older commit, to compare with")
    parser.add_argument("--programs", nargs="*", default=list(ROWS), choices=ROWS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        sys.exit(0)
    sys.exit(main(options.against, options.programs))
