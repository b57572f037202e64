"""The pretend model as a checkout in a folder of the test's, with the shipped kernels in it, and winners for them."""

from __future__ import annotations

from pathlib import Path

from infra.model_benchmark.placing import Kernel, Place
from tests.house.structure import ROOT
from tests.mutations.bases import FOLDER

HERE = Path(__file__).resolve().parent
PROMPTS = ("What is a kernel?", "Why is the sky blue?")
MATMUL, ATTENTION = Place("matmul_kernel.py", "matmul"), Place("attention_kernel.py", "attention")
WINNERS = {MATMUL: HERE / "winners" / "matmul.py", ATTENTION: FOLDER / "gqa_full.py"}
"""Found by the catalogue from the shipped kernels."""
_SHIPPED = {MATMUL: "matmul", ATTENTION: "gqa_full"}


def lay_out(folder: Path) -> Path:
    """The checkout, whose files carry permissions and times that putting back must restore."""
    folder.mkdir(parents=True)
    for name in ("main.py", "qwen.py"):
        (folder / name).write_bytes((HERE / "pretend" / name).read_bytes())
    (folder / "where_nki_sim_is.txt").write_text(f"{ROOT}\n")
    for place, seed in _SHIPPED.items():
        text = (ROOT / "nkibench_seeds" / seed / "kernel.py").read_text()
        (folder / place.file).write_text(text.replace("def kernel(", f"def {place.function}("))
    (folder / MATMUL.file).chmod(0o640)
    (folder / "prompts.txt").write_text("\n\n".join(PROMPTS) + "\n")
    rows = "".join(f"{number},18,64,{20 + number},{400 + number}\n" for number in range(len(PROMPTS)))
    for platform in ("trn2", "trn3"):
        (folder / f"prompt_data_{platform}.csv").write_text(f"ID, Context, Sequence, Latency, Throughput\n{rows}")
    return folder


def winner(place: Place) -> Kernel:
    return Kernel(f"winner of {place.function}", WINNERS[place].read_text(), "kernel")


def picture(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file below a folder: content, permissions, time of its last change."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
