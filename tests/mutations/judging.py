"""Judging a mutant as any candidate, at the small shape; traced in this process, since it is the tests' own."""

from __future__ import annotations

import contextlib
import io
import types
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path

import numpy as np

import nki_sim
from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CompileFailed, Measured, explain
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import Reference, ReferenceCache, argument_specs
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import DISTRIBUTIONS, Task
from accelopt_core.toolchain import ArgumentSpec, CompileError, ConstantArgument, TensorArgument
from infra.simulator.toolchain import Simulated, SimulatorToolchain
from infra.tasks.seed_index import load_seed
from nki_sim.dtypes import as_dtype
from nki_sim.tracing.session import TensorSpec
from tests.mutations.bases import Base
from tests.mutations.corpus import Mutant

nki_sim.install()

SECRET_SEED = 20251


class Fate(Enum):
    CAUGHT = "caught"
    NO_KERNEL = "does not compile"
    EQUIVALENT = "equivalent"
    """There is nothing to catch: the same bits as the honest kernel on every draw, or the same before rounding."""
    SURVIVED = "survived"


EQUAL_BEFORE_ROUNDING = {
    "bmm_softmax after steps: shifted input 0": "0.01 added to all of rhs adds one number to each row of scores, and a "
    "softmax takes it out",
    "gqa_full after steps: shifted input 0": "the same of k",
}
"""Mutants by name, and why no judge can tell them from another honest kernel."""


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    fate: Fate
    why: str


def _argument(spec: ArgumentSpec) -> object:
    if isinstance(spec, TensorArgument):
        return TensorSpec(spec.shape, as_dtype(spec.dtype))
    return spec.value if isinstance(spec, ConstantArgument) else as_dtype(spec.element_type)


class TracedHere(SimulatorToolchain):
    """The simulator, without a process around a kernel that is not a stranger's; the first wrong draw is the last."""

    parallel_runs = 0

    def compile(
        self, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float, around: object = None
    ) -> Simulated:
        module = types.ModuleType("mutant")
        specs = [_argument(each) for each in arguments]
        try:
            exec(compile(source, "<mutant>", "exec"), module.__dict__)
            return Simulated(nki_sim.trace(module.kernel, *specs, machine=self.model.name), self.model)
        except Exception as error:  # a mutant may raise anything
            raise CompileError(f"{type(error).__name__}: {error}".splitlines()[0]) from None


@cache
def toolchain() -> TracedHere:
    return TracedHere("trn2")


@cache
def small(name: str) -> Task:
    task = load_seed(name).task()
    return replace(task, presets=task.presets[:1], seeds=(0,))


def judged(mutant: Mutant, cache_folder: Path) -> Verdict:
    task = small(mutant.base.task)
    request = EvaluationRequest(task, Candidate("m", mutant.source, "input"), extra_seeds=(SECRET_SEED,))
    with np.errstate(all="ignore"), contextlib.redirect_stdout(io.StringIO()):
        result = judge(request, toolchain(), lambda step, detail: None, ReferenceCache(cache_folder))
        if isinstance(result, CompileFailed):
            return Verdict(mutant, Fate.NO_KERNEL, result.message)
        if not isinstance(result, Measured):
            return Verdict(mutant, Fate.CAUGHT, explain(result))
        if same_as_base(mutant.base, mutant.source):
            return Verdict(mutant, Fate.EQUIVALENT, "the same bits on every draw")
        if mutant.name in EQUAL_BEFORE_ROUNDING:
            return Verdict(mutant, Fate.EQUIVALENT, EQUAL_BEFORE_ROUNDING[mutant.name])
    return Verdict(mutant, Fate.SURVIVED, explain(result))


def same_as_base(base: Base, source: str) -> bool:
    task = small(base.task)
    reference = Reference(task, task.full)
    specs = argument_specs(reference.kernel_arguments(reference.inputs(0)))
    one, other = (toolchain().compile(text, specs, 60) for text in (base.source, source))
    for seed in (0, SECRET_SEED):
        for distribution in DISTRIBUTIONS:
            arguments = reference.kernel_arguments(reference.inputs(seed, distribution))
            tensors = [a for a in arguments if isinstance(a, np.ndarray)]
            pairs = zip(one.run(tensors, 60.0), other.run(tensors, 60.0))
            if any(a.tobytes() != b.tobytes() for a, b in pairs):
                return False
    return True
