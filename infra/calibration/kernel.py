"""What one calibration kernel is: its text, what it must compute, and how it becomes a program or a task."""

from __future__ import annotations

import hashlib
import types
from dataclasses import dataclass
from string import Template
from textwrap import indent

import nki_sim
from accelopt_core.candidate import Candidate
from accelopt_core.ports import EvaluationLimits, EvaluationRequest
from accelopt_core.task import DISTRIBUTIONS, PrecisionPolicy, ShapePreset, Task, Work
from nki_sim.dtypes import float32
from nki_sim.machine import machine as shipped_machine
from nki_sim.profile.profile import useful_work
from nki_sim.program.program import Program
from nki_sim.timing.cost import cost
from nki_sim.tracing.session import TensorSpec

TOLERANCE = 1e-2
"""Relative L2. These kernels are run for their time; the check only holds that no work was left out."""

LIMITS = EvaluationLimits(
    compile_timeout_s=180.0, run_timeout_s=120.0, warmup=1, iterations=5, max_spread=0.02, remeasure=1
)

_ONE_DRAW = "timed only: its result is compared on one set of inputs"

_HEAD = '''\
"""$title"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


'''

_REFERENCE = """\
import numpy as np


def get_inputs():
{inputs}


def forward({parameters}):
{result}


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [np.asarray(kernel_result).reshape(reference.shape)]
"""


@dataclass(frozen=True)
class CalibrationKernel:
    """Text only: it is compiled, verified and timed on a device as any candidate is."""

    name: str
    """Of rows and messages."""
    title: str
    source: str
    reference: str
    shapes: tuple[tuple[int, ...], ...]
    """Of its arguments, all float32."""
    repeats: int = 0
    """How often it does what it is there for; what a slope is taken over."""
    held_out: str = ""
    """The small grid it belongs to, if it is only predicted and never fitted to."""

    @property
    def digest(self) -> str:
        """Of the texts: a row of another version of a kernel is a row of another kernel."""
        return hashlib.sha256(f"{self.source}\0{self.reference}".encode()).hexdigest()[:12]

    def program(self, machine: str) -> Program:
        """As the simulator traces it, in this process: the text is ours. `machine`: a key of MACHINES."""
        nki_sim.install()
        module = types.ModuleType(f"calibration_kernel_{self.digest}")
        exec(compile(self.source, f"<calibration kernel {self.name}>", "exec"), module.__dict__)
        return nki_sim.trace(module.kernel, *(TensorSpec(shape, float32) for shape in self.shapes), machine=machine)

    def request(self, program: Program) -> EvaluationRequest:
        """For a target. `program` tells the work that is declared, so that a compiler which drops some is found out."""
        core = shipped_machine(program.machine)
        flops, operations, nbytes = useful_work(program, [cost(template, core) for template in program.templates])
        task = Task(
            f"calibration: {self.name}",
            self.reference,
            (ShapePreset("full", (), Work(flops, operations, nbytes)),),
            tolerance=TOLERANCE,
            precision=PrecisionPolicy.BF16_ALLOWED,
            seeds=(0,),
            left_out=tuple((name, _ONE_DRAW) for name in DISTRIBUTIONS[1:]),
        )
        return EvaluationRequest(task, Candidate(self.name, self.source), LIMITS)


def kernel_of(
    name: str,
    title: str,
    body: str,
    *,
    shapes: tuple[tuple[int, ...], ...],
    result: str,
    inputs: str = "",
    repeats: int = 0,
    held_out: str = "",
    **values: object,
) -> CalibrationKernel:
    """From the body of a kernel and of `forward`, whose arguments are x, y and z; `$word` is filled in from `values`.

    inputs: the body of `get_inputs`; without it, standard normal numbers.
    """
    filled = {"repeats": repeats, **values}
    drawn = ", ".join(f"np.random.normal(size={shape}).astype(np.float32)" for shape in shapes)
    reference = _REFERENCE.format(
        inputs=indent(Template(inputs or f"return [{drawn}]").substitute(filled), "    "),
        parameters=", ".join("xyz"[: len(shapes)]),
        result=indent(Template(result).substitute(filled), "    "),
    )
    source = Template(_HEAD + body).substitute(filled, title=title)
    return CalibrationKernel(name, title, source, reference, shapes, repeats, held_out)
