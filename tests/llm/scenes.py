"""A small but complete situation for the roles: one kernel, its profile, and a run that is three rounds old."""

from __future__ import annotations

from dataclasses import replace

from accelopt_core.candidate import Candidate, Plan
from accelopt_core.evaluation import Bottleneck, Bounds, Gap, HotLine, Measured, Profile
from accelopt_core.languages.nki.language import NKI
from accelopt_core.optimization_memory import Experience
from accelopt_core.proposer import RoundContext
from accelopt_core.task import ShapePreset, Task
from ka_extensions.reflexion import Reflexion
from tests.attempts import attempted

KERNEL = '''"""Scale every row."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, scale):
    rows, cols = x.shape
    out = nl.ndarray((rows, cols), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(rows // 128):
        s = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=s, src=scale)
        t = nl.ndarray((128, cols), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * 128:i * 128 + 128, 0:cols])
        y = nl.ndarray((128, cols), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=y, data=t, op0=nl.multiply, operand0=s)
        nisa.activation(dst=y, op=nl.silu, data=y)
        nisa.dma_copy(dst=out[i * 128:i * 128 + 128, 0:cols], src=y)
    return out
'''

BETTER = '''"""Scale every row."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, scale):
    rows, cols = x.shape
    out = nl.ndarray((rows, cols), dtype=x.dtype, buffer=nl.shared_hbm)
    s = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=s, src=scale)
    for i in range(rows // 128):
        t = nl.ndarray((128, cols), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * 128:i * 128 + 128, 0:cols])
        y = nl.ndarray((128, cols), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=y, op=nl.silu, data=t, scale=s)
        nisa.dma_copy(dst=out[i * 128:i * 128 + 128, 0:cols], src=y)
    return out
'''

REFERENCE = """import numpy as np

M, N = 4096, 2048


def get_inputs(rng):
    return rng.normal(size=(M, N)).astype(np.float32), rng.normal(size=(128, 1)).astype(np.float32)
"""

TASK = Task(
    name="row_silu",
    reference_source=REFERENCE,
    presets=(ShapePreset("small", (("M", 256), ("N", 512))), ShapePreset("full", (("M", 4096), ("N", 2048)))),
)

PROFILE = Profile(
    fields={
        "total_time": 400e-6, "dma_active_time_percent": 0.41, "hbm_read_bytes": 33_570_816.0,
        "vector_engine_instruction_count": 32.0, "a_field_nobody_listed": 1.0,
    },
    bounds=Bounds(matmul_us=0.0, vector_us=71.0, memory_us=168.0, source="declared"),
    hot_lines=(HotLine(18, "vector", 80.5, 32, "nisa.tensor_scalar(dst=y, data=t, op0=nl.multiply, operand0=s)"),),
    gaps=(Gap("repeated loads", 61.5, "hoist the load", "line 14 loads the same 512 B 32 times"),),
)  # fmt: skip


def measured(latency_us: float, profile: Profile = PROFILE) -> Measured:
    return Measured(latency_us, latency_us * 0.999, latency_us * 1.001, 10, True,
                    "simulated trn2 (nki_sim 0.1)", profile)  # fmt: skip


PARENT = Candidate("c0", KERNEL)

PLAN = Plan(
    id="plan-004", title="Load the scale once", technique="hoist-invariant-load", bottleneck=Bottleneck.UNDERUTILIZED,
    expected_gain_us=60.0, rationale="the repeated load on line 14 costs 61.5 µs",
)  # fmt: skip

WIN = Experience(
    title="Hoist a load that does not change", summary="Loading a constant tile in the loop repeats the DMA latency.",
    technique="hoist-invariant-load", bottleneck="underutilized", slow="for i in r:\n    dma",
    fast="dma\nfor i in r:", speedup=1.42, kernel="rmsnorm",
)  # fmt: skip
REJECTION = Experience(
    title="Sum in the activation", summary="Slower here.", technique="row-sum-in-activation", speedup=0.8, kernel="bmm"
)


def context(**changes: object) -> RoundContext:
    history = (
        attempted(1, "incorrect", name="c1", parent="c0", technique="widen-dma-rows",
                  title="Load two tiles", summary="wrong: seed 0"),
        attempted(2, "no_improvement", name="c2", source=BETTER + "\nX = 1\n", parent="c0", technique="exact-tiles",
                  title="Use 2048 columns", latency_us=401.0, summary="401.0 µs is not below 396.0 µs"),
    )  # fmt: skip
    reviewed = Reflexion(2, "Use 2048 columns", "exact-tiles", 30.0, -1.0, "no_improvement", False,
                         "Columns were fine.", ("tails of odd sizes",), ("resident scale",))  # fmt: skip
    base = RoundContext(
        round=4,
        task=TASK,
        parent=PARENT,
        parent_result=measured(400.0),
        best=PARENT,
        best_result=measured(400.0),
        baseline_us=800.0,
        language=NKI,
        history=history,
        reflexions=(reviewed,),
        avoid=("tails of odd sizes",),
        build_on=("resident scale",),
        experiences=(WIN, REJECTION),
    )
    return replace(base, **changes)  # type: ignore[arg-type] # any field of the context
