"""How many kernels a second are priced: steps on text, as the catalogue takes them today, and rules on the loop tree.

    python benchmarks/pricing_speed.py [--kernels NAME,...] [--most N]

Both in one run on the same kernels at their full shapes: the first so many steps from the seed, priced from cold.
"""

from __future__ import annotations

import argparse
import sys
import time
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nki_sim
from accelopt_core.catalogue.rewrites import legal_rewrites
from accelopt_core.rules.base import applied
from accelopt_core.rules.registry import RULES
from accelopt_core.rules.search import SimulatedPrices
from accelopt_core.task import Task
from accelopt_core.toolchain import TensorArgument
from accelopt_core.transforms.base import AnalysisContext, parse_kernel
from accelopt_core.transforms.registry import TRANSFORMS
from infra.prediction.predictor import Predictor, kernel_arguments
from infra.tasks.seed_index import load_seed
from nki_sim import machine_code, repeated
from nki_sim.dtypes import as_dtype
from nki_sim.loop_ir.changes import Refused
from nki_sim.loop_ir.reading import read
from nki_sim.loop_ir.tree import LoopKernel
from nki_sim.machine import TRN2
from nki_sim.session import TensorSpec

KERNELS = ("rmsnorm_matmul", "swiglu", "adamw", "mamba", "bmm")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--most", type=int, default=60, help="steps of each kernel (default %(default)s)")
    options = parser.parse_args()
    nki_sim.install()
    machine_code.compile_all()
    totals = [0.0, 0.0, 0.0, 0.0]
    for name in options.kernels.split(","):
        seed = load_seed(name)
        task = seed.task()
        text = _by_text(seed.kernel_source, task, options.most)
        with machine_code.using(True):
            found = (*text, *_by_tree(seed.kernel_source, task, options.most))
        totals = [total + each for total, each in zip(totals, found)]
        print(_line(name, found), flush=True)
    print(_line("all", totals))
    return 0


def _line(name: str, found: tuple[float, ...] | list[float]) -> str:
    steps, seconds, tree_steps, tree_seconds = found
    text, tree = steps / seconds, tree_steps / tree_seconds
    return (
        f"{name:20} text {steps:4.0f} in {seconds:6.1f} s, {text:6.1f}/s; "
        f"tree {tree_steps:4.0f} in {tree_seconds:6.1f} s, "
        f"{tree:6.1f}/s; {tree / text:5.1f} times"
    )


def _by_text(source: str, task: Task, most: int) -> tuple[float, float]:
    """(kernels, seconds), with finding and writing the steps."""
    predict = Predictor(task, "trn2")
    try:
        predict([source])
        began = time.monotonic()
        steps = legal_rewrites(parse_kernel(source), AnalysisContext(), TRANSFORMS)[:most]
        prices = predict([step.source for step in steps])
        return float(len(prices)), time.monotonic() - began
    finally:
        predict.close()


def _by_tree(source: str, task: Task, most: int) -> tuple[float, float]:
    price, kernel = SimulatedPrices(TRN2), _tree(source, task)
    price(kernel)
    began, count = time.monotonic(), 0
    for rule in RULES:
        for site in rule.sites(kernel):
            if count == most:
                break
            try:
                (changed,) = applied(rule, (kernel,), site)
            except Refused:
                continue
            price(changed)
            count += 1
    return float(count), time.monotonic() - began


def _tree(source: str, task: Task) -> LoopKernel:
    module = types.ModuleType("candidate")
    exec(repeated.compiled(source, f"{task.name}.py", module.__dict__), module.__dict__)
    arguments = [
        TensorSpec(tuple(each.shape), as_dtype(each.dtype))
        for each in kernel_arguments(task)[-1]
        if isinstance(each, TensorArgument)
    ]
    return read(nki_sim.trace(module.kernel, *arguments, machine="trn2"))


if __name__ == "__main__":
    sys.exit(main())
