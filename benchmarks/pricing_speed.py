"""How many kernels a second are priced: as changes of a loop tree, and as texts that are traced.

    python benchmarks/pricing_speed.py [--kernels NAME,...] [--most N]

Both through the predictor of a run, on the same kernels at their full shapes: all single steps from the seed, in one
process with finding and taking them; then the first so many of them written out, in as many processes as price a run's
texts. What both have before they begin is the seed itself, traced and read.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accelopt_core.catalogue.kernel_trees import StepName, StepRefused
from infra.prediction.predictor import WORKERS, Predictor
from infra.tasks.seed_index import load_seed

KERNELS = ("rmsnorm_matmul", "swiglu", "adamw", "mamba", "bmm")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--most", type=int, default=20, help="texts of each kernel (default %(default)s)")
    options = parser.parse_args()
    totals = [0.0, 0.0, 0.0, 0.0]
    for name in options.kernels.split(","):
        found = _priced(name, options.most)
        totals = [total + each for total, each in zip(totals, found)]
        print(_line(name, found), flush=True)
    print(_line("all", totals))
    return 0


def _line(name: str, found: list[float]) -> str:
    steps, seconds, texts, text_seconds = found
    tree, text = steps / seconds, texts / text_seconds
    return (
        f"{name:20} tree {steps:4.0f} in {seconds:6.1f} s, {tree:6.1f}/s; "
        f"text {texts:4.0f} in {text_seconds:6.1f} s by {WORKERS} processes, {text:6.1f}/s; {tree / text:5.1f} times"
    )


def _priced(name: str, most: int) -> list[float]:
    """Kernels and seconds, as trees and as texts."""
    seed = load_seed(name)
    source = seed.kernel_source
    with closing(Predictor(seed.task(), "trn2")) as predictor:
        predictor([source])
        predictor.single_steps(source, 0.0)
        began = time.monotonic()
        steps = predictor.single_steps(source).steps
        tree_s = time.monotonic() - began
        texts = [text for step in steps[:most] if (text := _text(predictor, source, step.name))]
        began = time.monotonic()
        predictor(texts)
        return [float(len(steps)), tree_s, float(len(set(texts))), time.monotonic() - began]


def _text(predictor: Predictor, source: str, step: StepName) -> str:
    """Empty for what has none."""
    try:
        return predictor.carried_out(source, [step])
    except StepRefused:
        return ""


if __name__ == "__main__":
    sys.exit(main())
