"""What `<command> --help` says, where a command needs more than the list of its flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CommandHelp:
    words: str
    """What may stand after the command."""
    description: str
    epilog: str
    groups: tuple[str, ...]
    """Of settings, whose flags are listed ..."""
    settings: tuple[str, ...] = ()
    """... and of those only these, where not all matter."""


CALIBRATE_HELP = """\
The simulator times kernels by nearly forty constants of the machine: what a transfer, an instruction, an element cost.
The shipped ones are fitted to published measurements. This measures small kernels on your own Trn2, refits what they
decide, and keeps it for that machine, SDK and compiler; runs on that host are predicted by it from then on.

what happens:
  1. some fifty small kernels are compiled, checked, timed there, one line each. What is measured is on disk at once:
     after a dropped link, Ctrl-C or kill -9 the same command goes on where it was. After ten minutes of device time
     (--calibrate-minutes) it fits with what it has.
  2. the constants are fitted here, in a minute. One that the kernels cannot decide stays as shipped, and says so.
  3. kernels that were not fitted (matmuls, streams, a softmax) show how true the shipped constants were there, and how
     true the new ones are. What is not truer is not kept.
"""

CALIBRATE_EXAMPLES = """\
examples:
  python3 orchestrator.py calibrate ubuntu@10.0.0.1                   measure, fit, keep
  python3 orchestrator.py calibrate ubuntu@10.0.0.1 --calibrate-minutes 15    go on with what was left for lack of time
  python3 orchestrator.py calibrate ubuntu@10.0.0.1 --calibrate-again         from the beginning
  python3 orchestrator.py calibrate --export rows.csv                 the newest measurements as a table, to send back
  python3 orchestrator.py --calibration calibrations/trn2-2.32-nki_0.6.1.json  simulate your device here

exit codes: 0 kept, or exported · 2 usage · 4 target unreachable · 5 interrupted, or not kept
"""

EXPLAIN_HELP = """\
Where a kernel loses time, and why nothing has been done about it yet. The kernel is compiled, verified and timed as the
input of a run would be (nothing is changed); of a run its best kernel is taken as it was measured.

Each gap, the most valuable first, comes with the lines where it arises and with what every transform of the built-in
catalogue that addresses it says:
  offered             legal; with the gain that the simulated machine predicts. A run would take the best of these
  refused             a rule stands in the way: which, and on which line. "normalizing would help" where it is how the
                      kernel is written: a name bound more than once, a tile made outside the loop that fills it
  no gain predicted   legal, and not worth it
  tried, applied already     in this run
The kernel's author, or a language model, can often do by hand what a transform refuses: it must be sure, they may know.
"""

EXPLAIN_EXAMPLES = """\
examples:
  python3 orchestrator.py explain mine.py                     its reference is found beside it, as for a run
  python3 orchestrator.py explain mine.py --problem ref.py --function rmsnorm
  python3 orchestrator.py explain --task bmm --preset small   a shipped task
  python3 orchestrator.py explain                             the best kernel of the latest run
  python3 orchestrator.py explain 20261120-125418             of that run
  python3 orchestrator.py explain mine.py --host ubuntu@10.0.0.1    as a device takes its time

exit codes: 0 explained · 2 usage · 3 the kernel is wrong or does not compile · 4 target unreachable
"""

_EXPLAINED_BY = (
    "kernel", "problem", "function", "migrate", "task", "preset", "checkpoints", "view", "host", "remote-simulator",
    "machine", "compile-timeout", "run-timeout", "candidate-memory",
)  # fmt: skip

COMMAND_HELP: Mapping[str, CommandHelp] = {
    "calibrate": CommandHelp("USER@HOST", CALIBRATE_HELP, CALIBRATE_EXAMPLES, ("calibration", "target")),
    "explain": CommandHelp("[KERNEL.py | RUN-ID]", EXPLAIN_HELP, EXPLAIN_EXAMPLES, ("run", "target"), _EXPLAINED_BY),
}
