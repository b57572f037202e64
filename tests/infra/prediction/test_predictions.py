"""What the predictor says of a kernel is what a judge says, with its timeline; its processes: test_predictor.py."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Measured, Predicted, bound_by
from accelopt_core.ports import EvaluationRequest
from infra.prediction.predictor import Predictor
from infra.prediction.timelines import SLICES, NoTimeline
from infra.targets.local import LocalTarget
from tests.infra.prediction.test_predictor import SOURCE, WIDER, small

OTHER = SOURCE.replace("TILE_N = 512", "TILE_N = 1792")
"""Asked for nowhere before."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Predictor]:
    """No test here ends its processes."""
    predictor = Predictor(small(), "trn2")
    yield predictor
    predictor.close()


@pytest.fixture(scope="module")
def judged() -> Measured:
    target = LocalTarget("simulator", "trn2")
    found = target.evaluate(EvaluationRequest(small(), Candidate("c", SOURCE)), lambda step, detail: None)
    target.close()
    assert isinstance(found, Measured)
    return found


def test_prices_and_what_binds_a_kernel_are_those_that_a_judge_gives(shared: Predictor, judged: Measured) -> None:
    assert shared([SOURCE, WIDER])[SOURCE] == judged.latency_us
    broken = SOURCE.replace("nl.silu", "nl.nothing")
    found = shared.predicted([SOURCE, broken])
    assert found == {SOURCE: Predicted(judged.latency_us, bound_by(judged.profile.fields)), broken: None}
    assert shared([SOURCE]) == {SOURCE: judged.latency_us}


def test_a_timeline_says_when_engines_are_busy_and_its_trace_names_lines_of_the_source(shared, judged) -> None:
    line = shared.timeline(SOURCE)
    assert line.latency_us == shared([SOURCE])[SOURCE] and line.cores == 1
    assert {len(shares) for shares in line.busy.values()} == {SLICES} and "scalar" in line.busy
    assert all(0 <= share <= 1 for shares in line.busy.values() for share in shares)
    busy_us = line.shown_us * sum(line.busy["scalar"]) / SLICES
    active_us = judged.profile.fields["scalar_engine_active_time"] * 1e6
    assert busy_us == pytest.approx(active_us, abs=0.5e-3 * line.shown_us + 0.01), "rounded to a thousandth of a slice"
    events = json.loads(gzip.decompress(line.trace))["traceEvents"]
    assert any("nisa.activation" in event["name"] for event in events if event["ph"] == "X")


def test_a_kernel_without_a_price_or_of_another_file_has_no_timeline(shared: Predictor) -> None:
    with pytest.raises(NoTimeline, match="nothing"):
        shared.timeline(SOURCE.replace("nl.silu", "nl.nothing"))
    another = SOURCE.replace("TILE_N = 512", "TILE_N = 3584")
    assert shared([another])[another], "the process is there for the next question"
    elsewhere = f"exec(compile({SOURCE!r}, '/etc/passwd', 'exec'))\n" + "x = 0\n" * len(SOURCE.splitlines())
    with pytest.raises(NoTimeline, match="another file"):
        shared.timeline(elsewhere)
    broken = OTHER.replace("nl.silu", "nl.nothing")
    unbounded = OTHER.replace("    M, N = x.shape\n", "    M, N = x.shape\n    raise SystemExit(3)\n")
    prices = shared([broken, unbounded, OTHER])
    assert (prices[broken], prices[unbounded]) == (None, None) and prices[OTHER]
