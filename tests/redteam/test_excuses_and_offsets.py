"""Shortcuts that cancel are refused, better forms than the reference's are not, and an excuse has a size."""

from __future__ import annotations

import pytest

from accelopt_core.evaluation import Measured, explain
from tests.redteam.row_kernels import HONEST, LICENCES, SHORTCUTS, task
from tests.redteam.test_unread_inputs import judged
from tests.slow import quick

FORMS = {f"{name}, {form}": (name, source) for name, forms in HONEST.items() for form, source in forms.items()}
QUICK = ("softplus, in one", "sigmoid by tanh, in one", "layernorm, by Welford", "cosines, squares one by one")


@pytest.mark.parametrize("form", quick(*QUICK, of=FORMS))
def test_an_honest_form_is_accepted(form: str) -> None:
    name, source = FORMS[form]
    result = judged(task(name), source, next(iter(HONEST[name].values())))
    assert isinstance(result, Measured), explain(result)


@pytest.mark.parametrize("name", quick("layernorm by squares", "distance by its square", of=SHORTCUTS))
def test_a_shortcut_is_refused(name: str) -> None:
    of, source = SHORTCUTS[name]
    result = judged(task(of), source, next(iter(HONEST[of].values())))
    assert not isinstance(result, Measured), result.checks


@pytest.mark.parametrize(
    "name", quick("0 in rows far from zero", "the largest where a sum of exponentials overflows", of=LICENCES)
)
def test_what_the_input_kernel_fails_is_no_licence(name: str) -> None:
    of, original, source = LICENCES[name]
    assert isinstance(judged(task(of), original, original), Measured), "the input kernel is as wrong as itself"
    result = judged(task(of), source, original)
    assert not isinstance(result, Measured), result.shared_faults
