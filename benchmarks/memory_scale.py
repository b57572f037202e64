"""How optimization memory behaves with 10,000 entries: load under 1 s, retrieve under 50 ms.

python benchmarks/memory_scale.py [--entries 10000]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accelopt_core.optimization_memory import Experience
from infra.runs.memory_file import MemoryFile

LOAD_BOUND_MS, RETRIEVE_BOUND_MS = 1000.0, 50.0
OPERATORS = ("nc_matmul", "activation:silu", "tensor_tensor:add", "dma_copy", "tensor_reduce", "nc_transpose")
BOTTLENECKS = ("memory-bound", "compute-bound", "underutilized")


def entry(number: int) -> dict[str, object]:
    return {
        "title": f"experience {number}", "summary": "what was done, and why it was faster. " * 8,
        "technique": f"technique-{number % 50}", "bottleneck": BOTTLENECKS[number % 3],
        "operators": [OPERATORS[number % 6], OPERATORS[number // 6 % 6]], "slow": "a = nl.load(x)\n" * 20,
        "fast": "b = nl.load(x)\n" * 20, "speedup": 0.5 + number % 97 / 50, "kernel": f"kernel-{number}",
        "machine": "simulated trn2", "toolchain": "nki_sim 0.1", "date": "2026-11-20",
    }  # fmt: skip


def fastest_ms(act: Callable[[], object], times: int = 5) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        taken.append(1e3 * (time.perf_counter() - began))
    return min(taken)


def main(entries: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rewrites.json")
        path.write_text(json.dumps([entry(number) for number in range(entries)]), encoding="utf-8")
        load_ms = fastest_ms(lambda: MemoryFile(path, print).load())
        memory = MemoryFile(path, print).load()
        retrieve_ms = fastest_ms(
            lambda: memory.retrieve(
                bottleneck="memory-bound", operators=OPERATORS[:4], limit=6, toolchain="nki_sim 0.2"
            )
        )
        file = MemoryFile(path, print)
        new = Experience("one more", "s", "technique-new", speedup=1.5)
        record_ms = fastest_ms(lambda: file.record(new, f"benchmark/{time.perf_counter_ns()}"))
        size_mib = path.stat().st_size / 2**20
    print(f"{entries:,} entries, {size_mib:.1f} MiB")
    print(f"load      {load_ms:8.1f} ms  (bound {LOAD_BOUND_MS:.0f} ms)")
    print(f"retrieve  {retrieve_ms:8.1f} ms  (bound {RETRIEVE_BOUND_MS:.0f} ms)")
    print(f"record    {record_ms:8.1f} ms")
    return 0 if load_ms <= LOAD_BOUND_MS and retrieve_ms <= RETRIEVE_BOUND_MS else 1


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--entries", type=int, default=10_000, metavar="N", help="experiences in memory (10,000)")
    sys.exit(main(arguments.parse_args().entries))
