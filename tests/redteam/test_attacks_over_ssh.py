"""What is refused here is refused over SSH: all attacks by hand on unread inputs, by cancellation and by excuses.

In one session over one connection, and in the end the honest kernels that they were made from.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from accelopt_core.evaluation import CompileFailed, Crashed, Evaluation, Implausible, Incorrect, Measured, explain
from accelopt_core.ports import EvaluationRequest
from tests.redteam.far import judge_over_ssh
from tests.redteam.row_kernels import HONEST, LICENCES, SHORTCUTS, task
from tests.redteam.test_unread_inputs import ATTACKS, UNMOVED, request_of
from tests.slow import quick

HOSTILE = {
    **{name: request_of(of.task, of.kernel(*lines), of.kernel()) for name, (of, lines) in ATTACKS.items()},
    **{name: request_of(task(of), text, next(iter(HONEST[of].values()))) for name, (of, text) in SHORTCUTS.items()},
    **{name: request_of(task(of), text, original) for name, (of, original, text) in LICENCES.items()},
}
RIGHT = {
    **{name: request_of(of.task, of.kernel(), of.kernel()) for name, of in UNMOVED.items()},
    **{
        f"{name}, {form}": request_of(task(name), text, next(iter(forms.values())))
        for name, forms in HONEST.items()
        for form, text in forms.items()
    },
}
QUICK = (next(iter(ATTACKS)), "layernorm by squares", "0 in rows far from zero")


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Evaluation]]:
    """Of all that this run of the tests asks for, by its name."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    names = {item.callspec.params["name"] for item in items if "verdicts" in item.fixturenames}
    asked = {name: each for name, each in {**HOSTILE, **RIGHT}.items() if name in names}
    with judge_over_ssh(tmp_path_factory) as far, ThreadPoolExecutor(far.target.width) as threads:

        def judged(each: EvaluationRequest) -> Evaluation:
            return far.target.evaluate(each, lambda step, detail: None)

        yield dict(zip(asked, threads.map(judged, asked.values())))


@pytest.mark.parametrize("name", quick(*QUICK, of=HOSTILE))
def test_an_attack_is_refused_over_ssh(verdicts: dict[str, Evaluation], name: str) -> None:
    result = verdicts[name]
    assert isinstance(result, (CompileFailed, Crashed, Incorrect, Implausible)), explain(result)


@pytest.mark.parametrize("name", quick("layernorm, by Welford", of=RIGHT))
def test_an_honest_kernel_is_accepted_over_ssh(verdicts: dict[str, Evaluation], name: str) -> None:
    result = verdicts[name]
    assert isinstance(result, Measured), explain(result)


def test_there_are_more_than_sixty() -> None:
    assert len(HOSTILE) == len(ATTACKS) + len(SHORTCUTS) + len(LICENCES) >= 60
