"""Forged programs against the judge's inside: none is accepted, ends a run, hangs the judge or outgrows its memory.

What reads, prices and executes is the judge's own code, so no wall stands between: what holds is the contract that each
instruction keeps, and that everything is counted before it is done.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CompileFailed, Crashed, Evaluation, Implausible, Incorrect, Measured, explain
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import ReferenceCache
from accelopt_core.languages.python_rules import lines_with_code
from accelopt_core.ports import EvaluationLimits, EvaluationRequest
from accelopt_core.toolchain import CompileError
from infra.judging.limits import limited_memory
from infra.simulator.toolchain import Simulated, SimulatorToolchain, _checked
from infra.targets.local import LocalTarget
from nki_sim.machine import MACHINES
from tests.redteam.forged_programs import NOT_WHAT_THEY_SAY, USED_UP
from tests.redteam.forgeries import EVERYTHING, HONEST, forged, leaving
from tests.redteam.test_redteam import TASK
from tests.slow import without

REFUSED = (CompileFailed, Incorrect, Implausible, Crashed)
"""None of them a fault of the target or of the task, which would end a run."""
MEMORY = 6 << 30
"""For the judge: less than it has by itself."""
LIMITS = EvaluationLimits(compile_timeout_s=60.0)
REQUEST = EvaluationRequest(TASK, Candidate("c", EVERYTHING), LIMITS, extra_seeds=(7,))


class Leaving(SimulatorToolchain):
    """A simulator in whose compiling process a candidate has left these bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__("trn2")
        self._data = data

    def compile(self, source: str, arguments: object, timeout_s: float, around: object = None) -> Simulated:
        return _checked(self._data, lines_with_code(source), MACHINES["trn2"])


def judged(data: bytes) -> Evaluation:
    toolchain = Leaving(data)
    try:
        with limited_memory(MEMORY, simulated=True):
            return judge(REQUEST, toolchain, lambda step, detail: None, ReferenceCache(None))
    finally:
        toolchain.close()


def assert_refused(result: Evaluation) -> None:
    assert isinstance(result, REFUSED), explain(result)
    said = explain(result)
    assert len(said) < 5000 and all(c.isprintable() or c == "\n" for c in said)


def test_unchanged_it_is_accepted() -> None:
    result = judged(forged(lambda forgery: None))
    assert isinstance(result, Measured), explain(result)


@pytest.mark.parametrize("name", NOT_WHAT_THEY_SAY)
def test_a_program_that_is_not_what_it_says_is_refused(name: str) -> None:
    """It is not even executed, but for results that are only wrong, which the comparison is there for."""
    data = forged(NOT_WHAT_THEY_SAY[name])
    if name in ("a result read backwards", "a destination that a transfer writes many times"):
        return assert_refused(judged(data))
    with pytest.raises(CompileError):
        _checked(data, lines_with_code(EVERYTHING), MACHINES["trn2"])


@pytest.mark.parametrize("name", without("a loop that never ends", "passes by the bits of an input", of=USED_UP))
def test_a_program_that_uses_up_the_judge_is_refused_in_time(name: str) -> None:
    assert_refused(judged(forged(USED_UP[name])))


SENT = {
    name: change
    for name, change in {**NOT_WHAT_THEY_SAY, **USED_UP}.items()
    if name not in ("a header of brackets", "a header of blanks", "ten million edges")
}
"""Those whose bytes fit in a source file, packed."""


def asked(name: str | None) -> EvaluationRequest:
    source = HONEST if name is None else leaving(forged(SENT[name]))
    return replace(REQUEST, candidate=Candidate("c", source))


@pytest.fixture(scope="module")
def here() -> Iterator[LocalTarget]:
    target = LocalTarget("simulator", "trn2")
    yield target
    honest = target.evaluate(asked(None), lambda step, detail: None)
    assert isinstance(honest, Measured), "the judge was harmed"
    target.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", SENT)
def test_a_candidate_that_leaves_it_is_refused_here(here: LocalTarget, name: str) -> None:
    assert_refused(here.evaluate(asked(name), lambda step, detail: None))


def test_the_memory_of_a_judge_is_limited_while_it_judges_and_not_after() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with limited_memory(MEMORY, simulated=True), pytest.raises(MemoryError):
        bytearray(MEMORY)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_judge_on_a_device_looks_at_its_own_memory() -> None:
    """There the limit is no system's, for compilers take what they take."""
    kept = []
    with pytest.raises(MemoryError), limited_memory(1 << 20, simulated=False):
        began = time.monotonic()
        while time.monotonic() - began < 10:
            kept.append(0)


def test_a_piece_of_work_has_a_limit_and_so_has_one_inside_it() -> None:
    from infra.isolation.deadline import within

    def busy(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass

    with pytest.raises(KeyError), within(0.2, KeyError), within(5.0, ValueError):
        busy(3.0)
    with pytest.raises(ValueError), within(5.0, KeyError), within(0.2, ValueError):
        busy(3.0)
    with pytest.raises(KeyError), within(0.4, KeyError):
        with within(5.0, ValueError):
            busy(0.1)
        busy(3.0)
    with within(0.2, KeyError):
        pass
    busy(0.3)
