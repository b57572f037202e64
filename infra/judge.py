"""The judge process: reads one job, evaluates one candidate, leaves one result.

    python -m infra.judge --job JOB.json --result RESULT.json [--cache FOLDER]
    python -m infra.judge --describe --toolchain simulator|auto
    python -m infra.judge --arguments --job JOB.json

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
    from accelopt_core.kernel_wrapper import judge
    from accelopt_core.orphans import end_with_parent
    from accelopt_core.ports import Step, TargetMisconfigured, TaskFault
    from accelopt_core.toolchain import ToolchainMissing
    from accelopt_core.verification import BadReference, Reference, ReferenceCache, argument_specs
    from infra import sandbox, wall, wire
    from infra.toolchains import open_toolchain
except ImportError as error:  # on a host that was not set up; a traceback would not say what to do
    raise SystemExit(
        f"{sys.executable} cannot judge kernels: {error}; give it what is missing (setup_trn2.sh does, or "
        f"`{sys.executable} -m pip install numpy ml_dtypes`)"
    ) from error


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.judge", description="Evaluate one candidate kernel.")
    parser.add_argument("--job", type=Path)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--cache", type=Path, help="folder for reference outputs, this judge's own")
    parser.add_argument("--parent", type=int, metavar="PID", help="end with this process, which started this one")
    parser.add_argument("--arguments", action="store_true", help="print what the job's kernel is called with")
    parser.add_argument("--describe", action="store_true", help="print what this machine can evaluate with")
    parser.add_argument("--toolchain", default="simulator", help="simulator or auto (with --describe)")
    options = parser.parse_args(argv)
    if options.describe:
        print(describe(options.toolchain))
        return 0
    if options.job is not None and options.arguments:
        print(arguments(options.job.read_text(encoding="utf-8")))
        return 0
    if options.job is None or options.result is None:
        parser.error("--job and --result go together")
    text = options.job.read_text(encoding="utf-8")
    request, nonce, toolchain_name = wire.decode_job(text)
    options.job.unlink()  # the nonce and the secret seeds are not for the candidate to find
    if options.cache is not None:
        options.cache.mkdir(mode=0o700, parents=True, exist_ok=True)

    def progress(step: Step, detail: str) -> None:
        print(json.dumps({"step": step.value, "detail": detail}), flush=True)

    if options.parent is not None:
        end_with_parent(options.parent)
    sandbox.adopt_descendants()
    try:
        toolchain = open_toolchain(toolchain_name, told=lambda line: progress(Step.VERIFY, line))
        try:
            result = wire.encode_evaluation(
                judge(request, toolchain, progress, ReferenceCache(options.cache, key=wire.cache_key(text))),
                nonce=nonce,
            )
            if toolchain.wall and (not toolchain.simulated or wall.is_lacking(toolchain.wall)):
                progress(Step.VERIFY, f"note: this system kept the candidate in with {toolchain.wall}")
        finally:
            toolchain.close()
    except ToolchainMissing as error:
        result = wire.encode_fault(TargetMisconfigured(str(error)), nonce=nonce)
    except BadReference as error:
        result = wire.encode_fault(TaskFault(str(error)), nonce=nonce)
    partial = options.result.with_suffix(".partial")
    partial.write_text(result, encoding="utf-8")
    os.replace(partial, options.result)
    return 0


def describe(toolchain_name: str) -> str:
    try:
        toolchain = open_toolchain(toolchain_name)
    except ToolchainMissing as error:
        return json.dumps({"target_error": {"kind": "misconfigured", "message": str(error)}})
    try:
        return json.dumps(
            {"fingerprint": toolchain.fingerprint, "name": toolchain.name, "simulated": toolchain.simulated}
        )
    finally:
        toolchain.close()


def arguments(job: str) -> str:
    """Shapes, dtypes and constants at each preset of the job; the user's reference is run here, not in the client."""
    request, _, _ = wire.decode_job(job)
    found = []
    try:
        for preset in request.task.presets:
            reference = Reference(request.task, preset)
            specs = argument_specs(reference.kernel_arguments(reference.inputs(request.task.seeds[0])))
            found.append([asdict(spec) for spec in specs])
    except BadReference as error:
        return json.dumps({"target_error": wire.describe_fault(TaskFault(str(error)))})
    return json.dumps({"arguments": found})


if __name__ == "__main__":
    sys.exit(main())
