"""The judge process: reads one job, evaluates one candidate, leaves one result.

    python -m infra.judging.judge --job JOB.json --result RESULT.json [--cache FOLDER] [--parent PID]
    python -m infra.judging.judge --wait --language KEY --toolchain NAME --result RESULT.json [--cache FOLDER] ...
    python -m infra.judging.judge --describe --language KEY --toolchain simulator|auto --machine NAME
                                  [--calibration JSON]
    python -m infra.judging.judge --arguments --job JOB.json
    python -m infra.judging.judge --compilers-own --job JOB.json

Progress goes to stdout, a JSON object per line. The result is written last and atomically; its
presence means that the evaluation is complete. Runs on the laptop and, shipped, on the instance.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

try:
    from accelopt_core.evaluation import CompilersOwn, Crashed, Evaluation, Step, TimedOut
    from accelopt_core.judging.judge import judge
    from accelopt_core.judging.orphans import end_with_parent
    from accelopt_core.judging.reference.verification import BadReference, Reference, ReferenceCache, argument_specs
    from accelopt_core.ports import Progress, TargetMisconfigured, TaskFault
    from accelopt_core.toolchain import Toolchain, ToolchainMissing
    from infra.isolation import report, sandbox
    from infra.isolation.deadline import within
    from infra.judging import wire
    from infra.judging.limits import SPARE_S, core_wait_s, judge_limit_s, judge_memory_bytes, limited_memory
    from infra.judging.toolchains import account_of, open_toolchain
    from infra.languages.registry import supported
except ImportError as error:  # on a host that was not set up; a traceback would not say what to do
    raise SystemExit(
        f"{sys.executable} cannot judge kernels: {error}; give it what is missing (setup_trn2.sh does, or "
        f"`{sys.executable} -m pip install numpy ml_dtypes`)"
    ) from error


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.judging.judge", description="Evaluate one candidate kernel.")
    parser.add_argument("--job", type=Path)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--cache", type=Path, help="folder for reference outputs, this judge's own")
    parser.add_argument("--parent", type=int, metavar="PID", help="end with this process, which started this one")
    parser.add_argument(
        "--wait",
        action="store_true",
        help="take the job from a line on standard input; it is of that language and toolchain",
    )
    parser.add_argument("--arguments", action="store_true", help="print what the job's kernel is called with")
    parser.add_argument("--compilers-own", action="store_true", help="print what the compiler makes of the reference")
    parser.add_argument("--describe", action="store_true", help="print what this machine can evaluate with")
    parser.add_argument("--language", default="nki", help="what the kernels are written in (with --describe or --wait)")
    parser.add_argument("--toolchain", default="simulator", help="simulator or auto (with --describe or --wait)")
    parser.add_argument("--machine", help="which the simulator simulates (with --describe)")
    parser.add_argument("--calibration", metavar="JSON", help="of that machine, by its user (with --describe)")
    options = parser.parse_args(argv)
    if options.describe:
        if options.machine is None:
            parser.error("--describe needs --machine")
        print(describe(options.language, options.toolchain, options.machine, options.calibration))
        return 0
    if options.job is not None and options.arguments:
        print(arguments(options.job.read_text(encoding="utf-8")))
        return 0
    if options.job is not None and options.compilers_own:
        print(compilers_own(options.job.read_text(encoding="utf-8")))
        return 0
    if (options.job is None and not options.wait) or options.result is None:
        parser.error("--job (or --wait) and --result go together")
    if options.parent is not None:
        end_with_parent(options.parent)
    if options.wait:
        supported(options.language).prepare(options.toolchain)
    text = sys.stdin.readline() if options.wait else options.job.read_text(encoding="utf-8")
    if not text:
        return 0  # whoever waits has no job for it
    job = wire.decode_job(text)
    if options.job is not None:
        options.job.unlink()  # the nonce and the secret seeds are not for the candidate to find
    if options.cache is not None:
        options.cache.mkdir(mode=0o700, parents=True, exist_ok=True)

    def progress(step: Step, detail: str) -> None:
        print(wire.encode_progress(step, detail), flush=True)

    sandbox.adopt_descendants()
    try:
        toolchain = open_toolchain(
            job.toolchain,
            language=job.request.task.language,
            machine=job.machine,
            calibration=job.calibration,
            memory_bytes=job.request.limits.memory_bytes,
            processes=job.processes,
            told=lambda line: progress(Step.VERIFY, line),
        )
        try:
            cache = ReferenceCache(options.cache, key=bytes.fromhex(job.cache_key))
            result = wire.encode_evaluation(_verdict(job, toolchain, progress, cache), nonce=job.nonce)
            if toolchain.isolation and (not toolchain.simulated or report.is_lacking(toolchain.isolation)):
                progress(Step.VERIFY, f"note: this system kept the candidate in with {toolchain.isolation}")
        finally:
            toolchain.close()
    except ToolchainMissing as error:
        result = wire.encode_fault(TargetMisconfigured(str(error)), nonce=job.nonce)
    except BadReference as error:
        result = wire.encode_fault(TaskFault(str(error)), nonce=job.nonce)
    partial = options.result.with_suffix(".partial")
    partial.write_text(result, encoding="utf-8")
    os.replace(partial, options.result)
    return 0


class _Late(Exception):
    """The whole evaluation takes longer than all of its steps together may."""


def _verdict(job: wire.Job, toolchain: Toolchain, progress: Progress, cache: ReferenceCache) -> Evaluation:
    """Of this candidate, also where judging it takes more time or memory than a judge may use."""
    reached = Step.COMPILE

    def told(step: Step, detail: str) -> None:
        nonlocal reached
        reached = step
        progress(step, detail)

    limit_s = judge_limit_s(job.request) - SPARE_S / 2 + (0.0 if toolchain.simulated else core_wait_s())
    memory = judge_memory_bytes(job.request)
    try:
        with limited_memory(memory, toolchain.simulated), within(limit_s, _Late):
            return judge(job.request, toolchain, told, cache)
    except _Late:
        return TimedOut(reached, limit_s)
    except MemoryError:
        said = f"judging it needs more than the {memory >> 20:,} MiB that a judge may use"
        return Crashed(reached, f"{said}; --candidate-memory allows both of them more")


def describe(language: str, toolchain_name: str, machine: str, calibrated: str | None = None) -> str:
    try:
        measured = supported(language).calibration_of(None if calibrated is None else json.loads(calibrated))
        toolchain = open_toolchain(toolchain_name, language=language, machine=machine, calibration=measured)
    except ToolchainMissing as error:
        return json.dumps({"target_error": wire.describe_fault(TargetMisconfigured(str(error)))})
    try:
        return wire.encode_account(account_of(toolchain))
    finally:
        toolchain.close()


def arguments(job: str) -> str:
    """Shapes, dtypes and constants at each preset of the job; the user's reference is run here, not in the client."""
    request = wire.decode_job(job).request
    found = []
    try:
        for preset in request.task.presets:
            reference = Reference(request.task, preset)
            specs = argument_specs(reference.kernel_arguments(reference.inputs(request.task.seeds[0])))
            found.append([asdict(spec) for spec in specs])
    except BadReference as error:
        return json.dumps({"target_error": wire.describe_fault(TaskFault(str(error)))})
    return json.dumps({"arguments": found})


def compilers_own(job: str) -> str:
    """Of the job's task, on a device: latency and a word on it, or why there is none."""
    wanted = wire.decode_job(job)
    language = wanted.request.task.language
    try:
        toolchain = open_toolchain(
            wanted.toolchain, language=language, machine=wanted.machine, calibration=wanted.calibration
        )
    except ToolchainMissing as error:
        return wire.encode_compilers_own(CompilersOwn(None, str(error)))
    try:
        return wire.encode_compilers_own(supported(language).compilers_own(toolchain, wanted.request))
    except (ToolchainMissing, BadReference) as error:
        return wire.encode_compilers_own(CompilersOwn(None, str(error)))
    finally:
        toolchain.close()


if __name__ == "__main__":
    sys.exit(main())
