"""What workers of one node do at the same time. No Ray is needed: processes are what meets there."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from infra.engines.ray_engine import bundle
from tests.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import sys, time
from pathlib import Path
from infra.engines.at_node import lay_out

folder, key, me = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def fetch():
    with open(folder / "fetched", "a") as file:
        file.write(me + "\\n")
    return (folder / "bundle").read_bytes()

(folder / me).touch()
while not (folder / "go").exists():
    time.sleep(0.001)
print(lay_out(str(folder), key, fetch))
"""


def test_workers_that_begin_together_lay_thelay_out_out_once(tmp_path: Path) -> None:
    made = bundle()
    (tmp_path / "trees").mkdir()
    (tmp_path / "bundle").write_bytes(made.data)
    names = [f"worker-{number}" for number in range(4)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), made.key, name],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in names
    ]  # fmt: skip
    try:
        until = time.monotonic() + 60
        while not all((tmp_path / name).exists() for name in names):
            assert time.monotonic() < until
            time.sleep(0.01)
        (tmp_path / "go").touch()
        said = [worker.communicate(timeout=PATIENCE_S) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [out.strip() for out, _ in said] == [str(tmp_path / "trees" / made.key)] * 4, said
    assert len((tmp_path / "fetched").read_text().splitlines()) == 1
    assert [entry.name for entry in (tmp_path / "trees").iterdir()] == [made.key], "nothing is left beside it"
