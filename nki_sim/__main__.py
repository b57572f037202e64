"""python -m nki_sim run|check|trace|profile|migrate kernel.py: the simulator from the command line.

Exit codes: 0 done, 1 the kernel breaks a rule (or `check` has findings, or `migrate` needs a person), 2 usage.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nki_sim import VERSIONS
from nki_sim.machine import DEFAULT_MACHINE, MACHINES


def main(arguments: Sequence[str] | None = None, program: str = "python -m nki_sim") -> int:
    """`program`: what it was started as, for usage lines."""
    options = parser(program).parse_args(arguments)
    # One thread for NumPy's products: those of tiles gain nothing from more, and on cores that others use they lose a
    # great deal. NumPy reads the number when it is loaded, with the commands.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from nki_sim.commands.actions import carried_out

    if not getattr(options, "json", False):
        return carried_out(options, None)
    document = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # what a kernel prints is no part of the document
        return carried_out(options, document)


def parser(program: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=program, description="NKI kernels on a CPU.")
    commands = made.add_subparsers(dest="command", required=True, metavar="run|check|trace|normal|profile|migrate")
    run = commands.add_parser("run", help="run a kernel on arrays and print or save its outputs")
    _kernel_options(run)
    _problem_option(run, "reference module: its inputs, its outputs beside the kernel's")
    run.add_argument("--output", metavar="PREFIX", help="save outputs as PREFIX0.npy, PREFIX1.npy, ...")
    check = commands.add_parser("check", help="what the NKI compiler or a device would get wrong although it runs here")
    _kernel_options(check)
    at = "reference module at whose arguments sums in PSUM are checked (default: the one beside the kernel)"
    _problem_option(check, at)
    check.add_argument("--nki", default=VERSIONS[-1], choices=VERSIONS, help="NKI version (default %(default)s)")
    check.add_argument("--hints", action="store_true", help="also what that version has a shorter way for")
    check.add_argument("--json", action="store_true", help=_JSON_HELP)
    trace = commands.add_parser("trace", help="print the instructions of a kernel, or save them as a program")
    _kernel_options(trace)
    trace.add_argument("--save", metavar="FILE", type=Path, help="write the program instead of printing it")
    trace.add_argument("--limit", type=int, default=100, help="instructions printed (default %(default)s)")
    normal = commands.add_parser("normal", help="print a kernel as loops over plain instructions, at these shapes")
    _kernel_options(normal)
    _problem_option(normal, "reference module whose get_inputs gives the arguments")
    profile = commands.add_parser("profile", help="predict how long a kernel takes, and where")
    _kernel_options(profile)
    _problem_option(profile, "reference module whose get_inputs gives the arguments")
    profile.add_argument(
        "--trace", "--perfetto", dest="perfetto", metavar="FILE", type=Path, help="write a timeline for ui.perfetto.dev"
    )
    profile.add_argument("--exact", action="store_true", help=argparse.SUPPRESS)  # as it always is
    profile.add_argument("--fields", action="store_true", help="print every field of the profiler's summary")
    profile.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    profile.add_argument("--json", action="store_true", help=_JSON_HELP)
    migrate = commands.add_parser("migrate", help="rewrite a kernel of an older NKI")
    _kernel_options(migrate)
    migrate.add_argument("--to", default=VERSIONS[-1], choices=VERSIONS[-1:], help="(default %(default)s)")
    migrate.add_argument("-o", "--output", metavar="NEW.py", type=Path, help="write it there instead of printing it")
    migrate.add_argument("--function", metavar="NAME", help="which kernel of the file")
    migrate.add_argument("--also-valid-in", choices=["0.6"], help="use nothing that this version does not have")
    _problem_option(migrate, "reference module whose arguments are used")
    migrate.add_argument("--grid", metavar="4x2", default="", help="launch grid that a kernel of NKI 0.1 is called on")
    return made


def _problem_option(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--problem", metavar="REF.py", type=Path, help=what)


_JSON_HELP = "print one JSON document instead, which keeps to a schema"


def _kernel_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernel", type=Path, help="kernel file, or file.py:function")
    parser.add_argument(
        "--inputs", nargs="+", default=[], metavar="A.npy", help="arrays, in the order of the arguments"
    )
    parser.add_argument(
        "--shape",
        nargs="+",
        default=[],
        metavar="128x512:float32",
        help="random normal arrays instead, by shape and dtype",
    )
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=VALUE", help="constant arguments (Python literals)"
    )
    parser.add_argument(
        "--machine",
        choices=MACHINES,
        help=f"which to simulate (default NEURON_PLATFORM_TARGET_OVERRIDE, else {DEFAULT_MACHINE})",
    )
    parser.add_argument("--lnc", type=int, default=None, help="cores of the launch grid, as kernel[lnc]")
    parser.add_argument("--seed", type=int, default=0, help="of the random arrays (default %(default)s)")


if __name__ == "__main__":
    sys.exit(main())
