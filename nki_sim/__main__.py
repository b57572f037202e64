"""python -m nki_sim run|check|trace|normal|profile|migrate kernel.py: the simulator from the command line.

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
    made = argparse.ArgumentParser(
        prog=program,
        description="NKI kernels on a CPU. `COMMAND --help` lists the flags of one.",
        epilog=_EPILOG.replace("nki-sim", program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="run|check|trace|normal|profile|migrate")
    run = _command(commands, "run", "run a kernel on arrays and print or save its outputs")
    _kernel_options(run)
    _problem_option(run, "reference module: its inputs, its outputs beside the kernel's")
    run.add_argument("--output", metavar="PREFIX", help="save outputs as PREFIX0.npy, PREFIX1.npy, ...")
    check = _command(
        commands, "check", "list what the NKI compiler rejects, or a device gets wrong, though it runs here"
    )
    _kernel_options(check)
    at = "reference module at whose arguments sums in PSUM are checked (default: the one beside the kernel)"
    _problem_option(check, at)
    check.add_argument("--nki", default=VERSIONS[-1], choices=VERSIONS, help="NKI version (default %(default)s)")
    check.add_argument("--hints", action="store_true", help="also name what that version has a shorter way for")
    check.add_argument("--json", action="store_true", help=_JSON_HELP)
    trace = _command(commands, "trace", "print the instructions of a kernel, or save them as a program")
    _kernel_options(trace)
    trace.add_argument("--save", metavar="FILE", type=Path, help="write the program instead of printing it")
    trace.add_argument("--limit", metavar="N", type=int, default=100, help="instructions printed (default %(default)s)")
    normal = _command(commands, "normal", "print a kernel as loops over plain instructions, at these shapes")
    _kernel_options(normal)
    _problem_option(normal, "reference module whose get_inputs gives the arguments")
    profile = _command(commands, "profile", "predict how long a kernel takes, and where")
    _kernel_options(profile)
    _problem_option(profile, "reference module whose get_inputs gives the arguments")
    profile.add_argument(
        "--trace", "--perfetto", dest="perfetto", metavar="FILE", type=Path, help="write a timeline for ui.perfetto.dev"
    )
    profile.add_argument("--exact", action="store_true", help=argparse.SUPPRESS)  # as it always is
    profile.add_argument("--fields", action="store_true", help="print every field of the profiler's summary")
    profile.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    profile.add_argument("--json", action="store_true", help=_JSON_HELP)
    migrate = _command(commands, "migrate", "rewrite a kernel of an older NKI")
    _kernel_options(migrate)
    migrate.add_argument(
        "--to", default=VERSIONS[-1], choices=VERSIONS[-1:], help="NKI version to rewrite for (default %(default)s)"
    )
    migrate.add_argument("-o", "--output", metavar="NEW.py", type=Path, help="write it there instead of printing it")
    migrate.add_argument("--function", metavar="NAME", help="which kernel of the file")
    migrate.add_argument("--also-valid-in", choices=["0.6"], help="use nothing that this version lacks")
    _problem_option(migrate, "reference module whose arguments are used")
    migrate.add_argument("--grid", metavar="4x2", default="", help="launch grid that a kernel of NKI 0.1 is called on")
    return made


_EPILOG = """\
examples:
  nki-sim run kernel.py --problem ref.py             outputs beside the reference's
  nki-sim run kernel.py --shape 128x512:float32      on random numbers
  nki-sim profile kernel.py --problem ref.py         simulated latency, and where it goes
  nki-sim migrate old.py -o new.py

exit codes: 0 done · 1 the kernel breaks a rule, `check` found something, or `migrate` needs a person · 2 usage
"""


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")


def _problem_option(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--problem", metavar="REF.py", type=Path, help=what)


_JSON_HELP = "print one JSON document with a schema instead"


def _kernel_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernel", type=Path, help="kernel file, or file.py:function")
    parser.add_argument(
        "--inputs", nargs="+", default=[], metavar="A.npy", help="the kernel's arrays, in the order of its arguments"
    )
    parser.add_argument(
        "--shape",
        nargs="+",
        default=[],
        metavar="128x512:float32",
        help="random normal arrays of these shapes and dtypes in their place",
    )
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=VALUE", help="arguments that are no arrays, as Python literals"
    )
    parser.add_argument(
        "--machine",
        choices=MACHINES,
        help=f"machine to simulate (default NEURON_PLATFORM_TARGET_OVERRIDE, else {DEFAULT_MACHINE})",
    )
    parser.add_argument("--lnc", metavar="N", type=int, default=None, help="cores to launch on, as kernel[N]")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of random arrays (default %(default)s)")


if __name__ == "__main__":
    sys.exit(main())
