"""The JSON that passes between a target and the judge process. It is shipped.

A job carries a nonce that only the judge and the target know; a result without it is not a result.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import (
    Bounds,
    CheckFailure,
    CompileFailed,
    CompilersOwn,
    Crashed,
    Duplicate,
    Evaluation,
    Finding,
    Furthest,
    Gap,
    HotLine,
    Idle,
    Implausible,
    Incorrect,
    IncumbentTiming,
    Installed,
    Likely,
    Measured,
    Profile,
    Proof,
    Property,
    Step,
    TimedOut,
    Untimed,
)
from accelopt_core.ports import (
    EvaluationLimits,
    EvaluationRequest,
    KnownProgram,
    TargetError,
    TargetInfo,
    TargetMisconfigured,
    TargetUnreachable,
    TaskFault,
)
from accelopt_core.task import Domain, PrecisionPolicy, ShapePreset, Surroundings, Task, Within, Work
from accelopt_core.toolchain import Calibration
from infra.languages.registry import supported
from ka_extensions.plain_text import one_line

WIRE_VERSION = 12

LONGEST_DETAIL = 500
"""Characters of one line of progress, or of complaint: a candidate may have a word in it."""


@dataclass(frozen=True)
class Job:
    """What a judge is to do."""

    request: EvaluationRequest
    nonce: str
    toolchain: str
    """`simulator` or `auto`."""
    machine: str
    """Which the simulator simulates; a device says itself what it is."""
    cache_key: str = ""
    """A session's own, in hexadecimal; references that were not cached under it are not believed."""
    calibration: Calibration | None = None
    """What the machine's model is replaced by, where its user has measured it."""
    processes: int | None = None
    """That the simulator keeps busy at most; None: one for each CPU."""


def encode_compilers_own(own: CompilersOwn) -> str:
    return json.dumps({"compilers_own": asdict(own)})


def decode_compilers_own(printed: str) -> CompilersOwn:
    """From the last line that a judge printed. Raises ValueError when that is none."""
    said = json.loads(printed)
    try:
        latency_us, why = said["compilers_own"]["latency_us"], one_line(said["compilers_own"]["said"], LONGEST_DETAIL)
        return CompilersOwn(None if latency_us is None else float(latency_us), why)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no word on what the compiler makes by itself: {error!r}") from None


def encode_job(job: Job) -> str:
    return json.dumps({"version": WIRE_VERSION, **asdict(job)})


def decode_job(text: str) -> Job:
    """Raises ValueError when the text is not a job of this version."""
    job = json.loads(text)
    if job.get("version") != WIRE_VERSION:
        raise ValueError(
            f"job version {job.get('version')} is not {WIRE_VERSION}: client and host run different releases"
        )
    data = job["request"]
    request = EvaluationRequest(
        task=_task(data["task"]),
        candidate=Candidate(**data["candidate"]),
        limits=EvaluationLimits(**data["limits"]),
        verify_full_below_us=data["verify_full_below_us"],
        extra_seeds=tuple(data["extra_seeds"]),
        final=data["final"],
        incumbent=None if data["incumbent"] is None else Candidate(**data["incumbent"]),
        original=None if data["original"] is None else Candidate(**data["original"]),
        is_input=data["is_input"],
        cores=data["cores"],
        output_types=None if data["output_types"] is None else tuple(data["output_types"]),
        known=tuple(KnownProgram(**{**known, "programs": tuple(known["programs"])}) for known in data["known"]),
        by_tool=data["by_tool"],
    )
    measured = supported(request.task.language).calibration_of(job["calibration"])
    return Job(request, job["nonce"], job["toolchain"], job["machine"], job["cache_key"], measured, job["processes"])


def _task(data: dict[str, Any]) -> Task:
    presets = tuple(
        ShapePreset(
            p["name"],
            tuple((k, v) for k, v in p["values"]),
            None if p["work"] is None else Work(**p["work"]),
            tuple(Domain(**domain) for domain in p["domains"]),
        )
        for p in data["presets"]
    )
    return Task(
        **{
            **data,
            "presets": presets,
            "precision": PrecisionPolicy(data["precision"]),
            "seeds": tuple(data["seeds"]),
            "left_out": tuple((name, reason) for name, reason in data["left_out"]),
            "around": decode_surroundings(data["around"]),
            "within": None if data["within"] is None else Within(**data["within"]),
        }
    )


def decode_surroundings(data: dict[str, Any]) -> Surroundings:
    """Raises KeyError, TypeError or ValueError for what are none."""
    return Surroundings(data["function"], data["module"], tuple((path, text) for path, text in data["neighbours"]))


def encode_account(info: TargetInfo) -> str:
    """What a judge says of its machine and its tools; a calibration is for whoever asked to find."""
    said = asdict(info)
    del said["calibration"]
    return json.dumps(said)


def decode_account(printed: str) -> TargetInfo:
    """The last line of it. Raises TargetMisconfigured with what is wrong there, and ValueError for no account."""
    try:
        said = json.loads(printed.strip().splitlines()[-1])
        if "target_error" in said:
            raise TargetMisconfigured(str(said["target_error"]["message"]))
        return TargetInfo(
            str(said["name"]), str(said["fingerprint"]), bool(said["simulated"]), str(said["machine"]),
            str(said["caveat"]), Installed(**said["installed"]),
        )  # fmt: skip
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"not a judge's account of itself: {error!r}") from None


def encode_progress(step: Step, detail: str) -> str:
    return json.dumps({"step": step.value, "detail": detail})


def decode_progress(line: str) -> tuple[Step, str] | None:
    """None for whatever else is printed."""
    try:
        said = json.loads(line)
        return Step(said["step"]), one_line(str(said["detail"]), LONGEST_DETAIL)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def encode_evaluation(evaluation: Evaluation, *, nonce: str) -> str:
    return json.dumps({"version": WIRE_VERSION, "nonce": nonce, "evaluation": asdict(evaluation)})


_FAULTS: dict[str, type[Exception]] = {
    "unreachable": TargetUnreachable,
    "misconfigured": TargetMisconfigured,
    "task": TaskFault,
}


def encode_fault(fault: TargetError | TaskFault, *, nonce: str) -> str:
    return json.dumps({"version": WIRE_VERSION, "nonce": nonce, "target_error": describe_fault(fault)})


def describe_fault(fault: TargetError | TaskFault) -> dict[str, str]:
    kind = next((kind for kind, known in _FAULTS.items() if isinstance(fault, known)), "misconfigured")
    return {"kind": kind, "message": str(fault)}


def fault_from(data: dict[str, Any]) -> Exception:
    """The exception to raise on this side."""
    return _FAULTS.get(str(data.get("kind")), TargetMisconfigured)(str(data.get("message")))


def decode_result(text: str, *, nonce: str) -> Evaluation:
    """Raises TargetError for anything that is not this job's evaluation, and for the target's own faults."""
    try:
        result = json.loads(text)
        if not isinstance(result, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise TargetMisconfigured(f"the judge's result is not JSON ({error}); run `orchestrator.py doctor`") from None
    if result.get("nonce") != nonce:
        raise TargetMisconfigured("the judge's result does not carry this job's nonce, so it is not believed")
    if "target_error" in result:
        raise fault_from(result["target_error"])
    try:
        return decode_evaluation(result["evaluation"])
    except (KeyError, TypeError, ValueError) as error:
        raise TargetMisconfigured(f"the judge's result is damaged ({error!r}); run `orchestrator.py doctor`") from None


def decode_evaluation(data: dict[str, Any]) -> Evaluation:
    """The Evaluation behind its `asdict` form. Raises KeyError, TypeError or ValueError when it is none."""
    fields = dict(data)
    kind = fields.pop("kind")
    if "programs" in fields:
        fields["programs"] = tuple(str(digest) for digest in fields["programs"])
    if kind == "compile_failed":
        return CompileFailed(**fields)
    if kind == "incorrect":
        failure = dict(fields["failure"])
        if failure.get("worst_index") is not None:
            failure["worst_index"] = tuple(failure["worst_index"])
        return Incorrect(**{**fields, "failure": CheckFailure(**failure)})
    if kind == "implausible":
        return Implausible(**fields)
    if kind == "duplicate":
        return Duplicate(**fields)
    if kind == "untimed":
        return Untimed(**{**fields, "checks": tuple(str(line) for line in fields["checks"])})
    if kind == "timed_out":
        return TimedOut(**{**fields, "step": Step(fields["step"])})
    if kind == "crashed":
        return Crashed(**{**fields, "step": Step(fields["step"])})
    if kind == "measured":
        profile = fields["profile"]
        fields["profile"] = Profile(
            fields={str(k): float(v) for k, v in profile["fields"].items()},
            bounds=Bounds(**profile["bounds"]),
            hot_lines=tuple(HotLine(**line) for line in profile["hot_lines"]),
            gaps=tuple(Gap(**gap) for gap in profile["gaps"]),
            idle=tuple(Idle(**stretch) for stretch in profile["idle"]),
        )
        fields["checks"] = tuple(fields["checks"])
        fields["shared_faults"] = tuple(str(line) for line in fields["shared_faults"])
        fields["contested"] = tuple(str(what) for what in fields["contested"])
        fields["output_types"] = tuple(str(name) for name in fields["output_types"])
        incumbent = fields.pop("incumbent")
        fields["incumbent"] = None if incumbent is None else IncumbentTiming(**incumbent)
        furthest = fields.pop("furthest")
        fields["furthest"] = None if furthest is None else Furthest(**furthest)
        likely = fields.pop("likely")
        fields["likely"] = None if likely is None else Likely(**{**likely, "rests_on": tuple(likely["rests_on"])})
        fields["proofs"] = tuple(
            Proof(
                Property(proof["property"]),
                Finding(proof["finding"]),
                str(proof["reason"]),
                str(proof.get("shape", "")),
            )
            for proof in fields["proofs"]
        )
        return Measured(**fields)
    raise ValueError(f"unknown evaluation kind {kind!r}")
