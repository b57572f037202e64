"""A whole-model benchmark as documents: measured on a host, put back, projected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infra.model_benchmark.figures import Gain, PromptScore
from infra.model_benchmark.projection import Projected, Projection
from infra.model_benchmark.verdict import Benchmarked, HarnessRun, PutBack, Verdict


@dataclass(frozen=True)
class PutDocument:
    """One kernel and the function that it stood in for."""

    kernel: str
    """As it was named: a file, or the run whose winner it is."""
    file: str
    """Below the checkout."""
    function: str


@dataclass(frozen=True)
class ScoredPromptDocument:
    """One prompt of a harness that scores."""

    score: float
    """Accuracy x reduced latency x increased throughput x (1 + share of FLOPs in NKI)."""
    figures: PromptScore


@dataclass(frozen=True)
class HarnessRunDocument:
    """One run of the model's own harness. What it does not report is null."""

    began: str
    """UTC."""
    seconds: float
    accuracy: Literal["passed", "failed", "not checked"]
    """`not checked`: the harness does not look at the answers, whatever its score assumes."""
    score: float | None
    """All prompts' together."""
    latency_ms: float | None
    """Of a whole answer, end to end; of several prompts the mean."""
    first_token_ms: float | None
    per_token_ms: float | None
    tokens_per_s: float | None
    nki_flop_share: float | None
    """Multiply-accumulates in NKI kernels over all of the model's, 0 to 1."""
    prompts: tuple[ScoredPromptDocument, ...]
    notes: tuple[str, ...]
    folder: str
    """On this machine, with all that the harness brought back."""


@dataclass(frozen=True)
class ModelDocument:
    """A model without our kernels and with them, by its own harness on its own host."""

    host: str
    checkout: str
    harness: str
    put: tuple[PutDocument, ...]
    verdict: Literal["faster", "not faster", "failed"]
    """`failed`: the answers are wrong, or the harness fails, with the kernels in; whatever the speed."""
    why: str
    in_place: bool
    """The kernels are in the checkout still; `model --undo` puts it back."""
    gain: Gain | None
    """With the kernels against without, above 1 where they help; null where there is nothing to compare."""
    baseline: HarnessRunDocument
    kernels: HarnessRunDocument | None
    """With them in; null where the harness failed then."""
    run_id: str | None
    """The run whose winner was judged so at its end (`--then model`); null for a call of its own."""
    notes: tuple[str, ...]
    schema: Literal["nki-optimizer/model/1"] = "nki-optimizer/model/1"


@dataclass(frozen=True)
class PutBackDocument:
    """A checkout as it was before kernels were put into it."""

    host: str
    checkout: str
    files: tuple[str, ...]
    """Put back; none where nothing of ours was in it."""
    kept: tuple[str, ...]
    """Copies on the host of files that somebody had changed since."""
    schema: Literal["nki-optimizer/put-back/1"] = "nki-optimizer/put-back/1"


@dataclass(frozen=True)
class ProjectionDocument:
    """What kernels would gain a model, by Amdahl's law, from simulated latencies. No model was run."""

    model: str
    speedup: float
    """Of the model's step."""
    covered: float
    """The kernels' share of the step's time, 0 to 1; the rest is taken to stay as it is."""
    step_us: float | None
    projected_step_us: float | None
    tokens_per_s: float | None
    """Of the whole batch, as it is; null where the table says not what a step takes, or how many tokens it makes."""
    projected_tokens_per_s: float | None
    kernels: tuple[Projected, ...]
    machine: str
    caveat: str
    """What must be said besides wherever a figure is shown; empty where nothing must."""
    simulated: Literal[True] = True
    schema: Literal["nki-optimizer/projection/1"] = "nki-optimizer/projection/1"


def model_document(
    host: str, harness: str, put: tuple[PutDocument, ...], found: Benchmarked, run_id: str | None = None
) -> ModelDocument:
    return ModelDocument(
        host, found.checkout, harness, put, _word(found.verdict), found.why, found.in_place, found.gain,
        _of_run(found.baseline), _of_run(found.kernels) if found.kernels is not None else None, run_id, found.notes,
    )  # fmt: skip


def put_back_document(host: str, checkout: str, back: PutBack | None) -> PutBackDocument:
    if back is None:
        return PutBackDocument(host, checkout, (), ())
    return PutBackDocument(host, back.checkout, back.files, back.kept)


def projection_document(found: Projection, machine: str, caveat: str) -> ProjectionDocument:
    return ProjectionDocument(
        found.model, found.speedup, found.covered, found.step_us, found.projected_step_us, found.tokens_per_s,
        found.projected_tokens_per_s, found.kernels, machine, caveat,
    )  # fmt: skip


def _of_run(run: HarnessRun) -> HarnessRunDocument:
    said = run.figures
    return HarnessRunDocument(
        run.began, run.elapsed_s, said.accuracy.value, said.score, said.latency_ms, said.first_token_ms,
        said.per_token_ms, said.tokens_per_s, said.nki_flop_share,
        tuple(ScoredPromptDocument(prompt.score, prompt) for prompt in said.prompts), said.notes, run.folder,
    )  # fmt: skip


def _word(verdict: Verdict) -> Literal["faster", "not faster", "failed"]:
    if verdict is Verdict.FASTER:
        return "faster"
    return "not faster" if verdict is Verdict.NOT_FASTER else "failed"
