"""An instruction may write where it has read, and not where it has yet to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nki_sim
from nki_sim.dtypes import float32
from nki_sim.encoding import program_file
from nki_sim.errors import NkiValidationError, ProgramFormatError
from nki_sim.tracing.session import TensorSpec

nki_sim.install()

import nki  # noqa: E402  # the simulator's, once it is installed
import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402

N = 512
Body = Callable[[Any], None]


def copy(to: Callable[[Any], Any], source: Callable[[Any], Any], engine: Any = nisa.engine.vector) -> Body:
    return lambda t: nisa.tensor_copy(dst=to(t), src=source(t), engine=engine)


def moved(to: Callable[[Any], Any], source: Callable[[Any], Any]) -> Body:
    return lambda t: nisa.dma_copy(dst=to(t), src=source(t))


def backwards(t: Any) -> Any:
    return t.ap(pattern=[[N, 128], [-1, N]], offset=N - 1)


def wide(t: Any) -> Any:
    return t.view(nl.float32)[:, 0 : N // 2]


def narrow(t: Any) -> Any:
    return t.view(nl.bfloat16)[:, 0 : N // 2]


DEFINED: dict[str, Body] = {
    "the same elements": copy(lambda t: t, lambda t: t),
    "two sources": lambda t: nisa.tensor_tensor(dst=t, data1=t, data2=t, op=nl.add),
    "a shift to the left": copy(lambda t: t[:, 0 : N - 1], lambda t: t[:, 1:N]),
    "halves beside each other": copy(lambda t: t[:, 0:256], lambda t: t[:, 256:512]),
    "every second element of the others": copy(lambda t: t[:, 0:N:2], lambda t: t[:, 1:N:2]),
    "other partitions": copy(lambda t: t[0:64, 1:N], lambda t: t[64:128, 0 : N - 1]),
    "a narrower type": copy(narrow, wide),
    "a number of each row": lambda t: nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=t[:, 5:6]),
    "a sum beside what it sums": lambda t: nisa.tensor_reduce(dst=t[:, 0:1], op=nl.add, data=t[:, 1:N], axis=1),
    "a transfer of rows beside each other": moved(lambda t: t[0:64, :], lambda t: t[64:128, :]),
}
LOST: dict[str, Body] = {
    "a shift to the right": copy(lambda t: t[:, 1:N], lambda t: t[:, 0 : N - 1]),
    "backwards": copy(lambda t: t, backwards),
    "onto itself backwards": copy(backwards, lambda t: t),
    "half of it backwards": copy(lambda t: t[:, 0:256], lambda t: t.ap(pattern=[[N, 128], [-1, 256]], offset=300)),
    "a wider type": copy(wide, narrow),
    "spread out": copy(lambda t: t[:, 0:N:2], lambda t: t[:, 0 : N // 2]),
    "the second source": lambda t: nisa.tensor_tensor(dst=t[:, 1:N], data1=t[:, 1:N], data2=t[:, 0 : N - 1], op=nl.add),
    "on the scalar engine": lambda t: nisa.activation(dst=t[:, 1:N], op=nl.exp, data=t[:, 0 : N - 1]),
    "a transfer to the left": moved(lambda t: t[:, 0 : N - 1], lambda t: t[:, 1:N]),
    "a transfer of rows that overlap": moved(lambda t: t[0:100, :], lambda t: t[28:128, :]),
}


def kernel(body: Body) -> Any:
    @nki.jit
    def filled(x):  # type: ignore[no-untyped-def]  # a kernel
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        body(t)
        nisa.dma_copy(dst=out, src=t)
        return out

    return filled


@pytest.mark.parametrize("name", DEFINED)
def test_what_is_read_before_it_is_written_is_well_defined(name: str) -> None:
    nki_sim.trace(kernel(DEFINED[name]), TensorSpec((128, N), float32))


@pytest.mark.parametrize("name", LOST)
def test_what_is_written_before_it_is_read_is_refused_at_its_line(name: str) -> None:
    with pytest.raises(NkiValidationError, match="overlaps .* in another order") as refused:
        nki_sim.trace(kernel(LOST[name]), TensorSpec((128, N), float32))
    assert refused.value.line is not None
    with pytest.raises(NkiValidationError, match="another order"):
        nki.simulate(kernel(LOST[name]))(np.zeros((128, N), np.float32))


def test_a_forged_program_of_that_kind_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("nki_sim.nki.run.check_in_place", lambda program: None)
        forged = program_file.dumps(nki_sim.trace(kernel(LOST["backwards"]), TensorSpec((128, N), float32)))
    with pytest.raises(ProgramFormatError, match="another order"):
        program_file.loads(forged, "trn2")
