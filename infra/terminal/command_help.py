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


DEMO = "demo"
"""The word for a run of a shipped task: attention with grouped heads, which half a minute makes three times as fast."""
DEMO_TASK, DEMO_PRESET = "gqa_full", "small"

BEGIN = """\
One NKI kernel made faster, round by round: planned, written, verified, timed, kept or not. To begin:

  python3 orchestrator.py demo                  shipped attention on the simulated Trainium2: a minute, no key
  python3 orchestrator.py mine.py               your kernel, beside its NumPy reference mine_reference.py
  python3 orchestrator.py init mine.py          writes the beginning of that reference
  python3 orchestrator.py mine.py USER@HOST     on a Trn2, over SSH; `doctor USER@HOST` says what works there
  python3 orchestrator.py --help                what else there is
"""

RUN_HELP = """\
Makes one NKI kernel faster, round by round: plan, write, compile, verify, time, decide, learn.
"""

RUN_EXAMPLES = """\
examples:
  python3 orchestrator.py demo                       shipped attention on the simulated Trainium2, no key needed
  python3 orchestrator.py mine.py                    your kernel; its reference is found beside it: mine_reference.py
  python3 orchestrator.py mine.py ubuntu@10.0.0.1    the same on a real Trn2, over SSH
  python3 orchestrator.py mine.py --provider anthropic --max-cost 5

other commands, each with its own --help:
  init KERNEL.py            the beginning of its reference
  doctor [USER@HOST ...]    what works on this machine or on those hosts, and what to do
  calibrate USER@HOST       the machine's constants as your own Trn2 shows them, in ten minutes
  explain [KERNEL.py | RUN-ID]   where its time is lost, and what keeps the catalogue from it
  evaluate KERNEL.py        one kernel compiled, verified and timed, without a run
  menu, apply KERNEL.py     the catalogue's changes that apply to it; one of them written to a new file
  runs, show, diff [RUN-ID] all runs; one run, suite or set of shapes whole; the best kernel against the input
  model USER@HOST           does a kernel help inside its model?
  mcp                       serves all of this to an agent, on stdin and stdout
  clean, config             what killed runs left behind; every setting with its value, as a settings file

exit codes: 0 finished, improved or not · 2 usage · 3 the input kernel is wrong or does not compile ·
            4 target or model unreachable · 5 budget used up or interrupted
"""

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

Each gap, the most valuable first, comes with the lines where it arises and with what the rules of the built-in
catalogue say that have a place there:
  offered             it keeps what the kernel computes; with the gain that the simulated machine predicts
  refused             what stands in the way: of the data or of the hardware, and on which line
  no gain predicted   it could be done, and is not worth it
  tried, applied already     in this run
The kernel's author, or a language model, can often do by hand what a rule refuses: it must be sure, they may know.
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

EVALUATE_HELP = """\
One kernel compiled, verified with every seed and input distribution, and timed, without a run; nothing is changed. With
--original FILE it is judged as a change of that kernel, and proved equal to it where it can be; with --original and the
same file, as the input of a run.
"""

EVALUATE_EXAMPLES = """\
examples:
  python3 orchestrator.py evaluate mine.py                        its reference is found beside it, as for a run
  python3 orchestrator.py evaluate changed.py --problem ref.py --original mine.py --json

exit codes: 0 right · 2 usage · 3 the kernel is wrong or does not compile · 4 target unreachable
"""

MENU_HELP = """\
The built-in catalogue's changes that apply to a kernel, the best first, each with the gain that the simulated machine
predicts and with the tool and the site by which `apply` carries it out; and what keeps it from closing the larger gaps.
The kernel is tested at its cheaper shapes only: `evaluate` verifies it.
"""

MENU_EXAMPLES = """\
examples:
  python3 orchestrator.py menu mine.py --problem ref.py
  python3 orchestrator.py menu --task bmm --preset small --json

exit codes: 0 there is a menu, maybe an empty one · 2 usage · 3 the kernel is wrong or does not compile
"""

APPLY_HELP = """\
One change of a kernel's menu, carried out and written to a new file. Tool and site are those that `menu` names. Nothing
of the new kernel is run: evaluate it. A file that is there is overwritten with --overwrite only.
"""

APPLY_EXAMPLES = """\
examples:
  python3 orchestrator.py apply --from latest --round 2 --output mine_2.py
  python3 orchestrator.py apply --from latest --step 3 --output mine_3.py    without the steps after that
  python3 orchestrator.py apply mine.py --tool group-transfers --site 1:all:1 --output mine_2.py

exit codes: 0 written · 2 usage, no such change, or there is such a file
"""

MCP_HELP = """\
Serves an agent over the Model Context Protocol, on stdin and stdout, until it closes stdin: evaluate, profile, check,
menu, apply, migrate, doctor, and runs that it can start, follow and stop. All files are named below the folder that it
is started in, and none outside of it is read or written for an agent. Where candidates are evaluated, with which
model, and what a run may cost is said here, by flags, and no agent changes it; without --provider runs ask no model.
"""

MCP_EXAMPLES = """\
examples:
  python3 orchestrator.py mcp                                  the simulated machine
  python3 orchestrator.py mcp ubuntu@10.0.0.1                  a Trn2, over SSH
  python3 orchestrator.py mcp --provider anthropic --max-cost 5     runs that it starts may cost so much each

It needs the package mcp: pip install 'nki-optimizer[mcp]' (docs/agents.md). What an agent's user copies to its skills:
skills/nki-optimizer/SKILL.md
"""

INIT_HELP = """\
Writes KERNEL_reference.py beside a kernel: the NumPy module that says what it must compute, to be filled in. The
kernel's parameters are taken from its signature. Their shapes are those of --shape, or else the smallest at which the
kernel traces: from what it unpacks of `x.shape`, with sizes of 128 to 2048 tried in a process of its own. What nobody
can tell is a TODO that raises NotImplementedError when it is run. A file that is there is never overwritten.
"""

INIT_EXAMPLES = """\
examples:
  python3 orchestrator.py init mine.py                                  mine_reference.py
  python3 orchestrator.py init mine.py --shape 4096x512 512:bfloat16    two tensors, of these shapes
  python3 orchestrator.py init library/norm.py --function rmsnorm

exit codes: 0 written · 2 usage, or there is such a file
"""

CLEAN_HELP = """\
Removes what killed runs left behind. Here: folders of ours in the system's temporary one whose process is gone,
half-written files and empty folders of runs that nobody is at, what finished runs still remember of jobs on hosts. On a
host: jobs that ended more than a day ago, and files that were sent there and scratch that nobody used for an hour.

No run's results are touched, and nothing that a living process holds: each thing that is kept comes with the reason. A
job that an interrupted run will collect is kept, and while any job runs on a host, so are the files sent there. Leases
of cores are left alone: they end by themselves.
"""

CLEAN_EXAMPLES = """\
examples:
  python3 orchestrator.py clean --dry-run              what would be removed here
  python3 orchestrator.py clean                        remove it
  python3 orchestrator.py clean ubuntu@10.0.0.1        what our own jobs left on that host

exit codes: 0 done · 2 usage · 4 a host is unreachable
"""

MODEL_HELP = """\
Does a kernel help inside the model? The model's own harness runs on the host, once on the checkout as it is and once
with the kernels in the place of its own functions; scores, latencies, throughput and accuracy are compared.

what happens:
  1. the baseline: the harness on the checkout as it is, unless the same was run before.
  2. each kernel goes beside its file as a module of its own, and an import stands where the function stood. The
     originals are kept on the host first.
  3. the harness again, as a job of its own: after a dropped link or kill -9 here the same command goes on with it.
  4. wrong answers, a harness that fails, or no gain: the checkout is put back at once. Else the kernels stay, until
     --undo, which puts every byte back whatever was killed in between.

Without a device: --kernel-table FILE.toml projects what kernels would gain a model, by Amdahl's law, simulated.
docs/model.md has the formats.
"""

MODEL_EXAMPLES = """\
examples:
  python3 orchestrator.py model ubuntu@10.0.0.1 --checkout nki-moe \\
      --put latest=nki_custom_rmsnorm.py:nki_rmsnorm_kernel --harness-args '--qwen qwen_with_nki --mode evaluate_all'
  python3 orchestrator.py model ubuntu@10.0.0.1 --checkout nki-moe --undo
  python3 orchestrator.py model ubuntu@10.0.0.1 --checkout mine --put a.py=layers/mlp.py:mlp --harness command \\
      --harness-command '{python} {checkout}/bench.py --report {report}'
  python3 orchestrator.py model --kernel-table qwen.toml          a projection, with no model and no host
  python3 orchestrator.py ubuntu@10.0.0.1 --kernel mine.py --then model --checkout nki-moe --put qwen.py:mine

exit codes: 0 done, faster or not · 2 usage · 3 the benchmark failed: wrong answers, or the harness with the kernels in
            4 host unreachable, a kernel that does not fit, or a harness that fails as it is · 5 interrupted
"""

DOCTOR_HELP = """\
What works where candidates would be evaluated, proved with a known kernel, and what to do about what does not: on this
machine, on hosts over SSH, or with --engine ray on each node of a cluster.
"""

DOCTOR_EXAMPLES = """\
examples:
  python3 orchestrator.py doctor                        this machine, and the simulator
  python3 orchestrator.py doctor ubuntu@10.0.0.1        a Trn2: SDK, devices, profiler, isolation
  python3 orchestrator.py doctor --engine ray           the nodes of a cluster
"""

SHOW_HELP = """\
A run, a suite or a set of shapes: result, rounds, lineage, and the difference to the input. Without an id: the latest
run. `runs` lists the ids.
"""

SHOW_EXAMPLES = """\
examples:
  python3 orchestrator.py show
  python3 orchestrator.py show 20261120-125418 --html        one page with pictures, report.html in the run's folder
  python3 orchestrator.py show --json                        for scripts (docs/scripts.md)
"""

RUNS_HELP = "All runs, newest first: id, task, latencies, how each ended.\n"
DIFF_HELP = "The difference between the input and the best kernel of a run, whole. Without an id: the latest run.\n"
CONFIG_HELP = """\
Every setting with the value that it has here, in the form of nki-optimizer.toml: a file to begin with. A flag beats the
environment (NKI_OPT_ROUNDS=50), which beats that file in the current folder.
"""
CONFIG_EXAMPLES = """\
examples:
  python3 orchestrator.py config > nki-optimizer.toml
  python3 orchestrator.py config --rounds 50 --provider catalogue
"""

_RUN_BY = (
    "problem", "shape", "function", "migrate", "suite", "shapes", "preset", "rounds", "in-place", "resume", "host",
    "cores", "remote-simulator", "provider", "model", "max-cost", "max-hours", "tolerance", "precision",
)  # fmt: skip
"""What most people give at some time; `--help-all` has the rest."""

_EXPLAINED_BY = (
    "kernel", "problem", "shape", "function", "migrate", "task", "preset", "checkpoints", "view", "host",
    "remote-simulator", "machine", "compile-timeout", "run-timeout", "candidate-memory",
)  # fmt: skip

_APPLIED_BY = ("kernel", "problem", "shape", "function", "migrate", "task", "preset")
_SERVED_BY = (
    "checkpoints", "memory", "host", "remote-simulator", "machine", "engine", "compile-timeout", "run-timeout",
    "candidate-memory", "provider", "model", "proposers", "base-url", "max-cost", "max-tokens", "max-hours",
)  # fmt: skip

_EXAMINED_BY = (
    "host", "remote-simulator", "engine", "neuron-cores", "machine", "ssh-config",
    "accept-new-host-key", "remote-python", "remote-dir",
)  # fmt: skip
_CLEANED_BY = ("checkpoints", "ssh-config", "remote-dir")

_BENCHMARKED_BY = (
    "checkout", "put", "harness", "harness-args", "harness-command", "harness-hours", "baseline-again", "undo",
    "kernel-table", "model-benchmarks", "host", "machine", "ssh-config",
    "accept-new-host-key", "remote-python", "remote-dir", "reconnect", "checkpoints",
)  # fmt: skip

COMMAND_HELP: Mapping[str, CommandHelp] = {
    "run": CommandHelp(
        "[KERNEL.py] [USER@HOST ...]",
        RUN_HELP,
        RUN_EXAMPLES,
        ("run", "target", "model", "budget", "verification"),
        _RUN_BY,
    ),
    "calibrate": CommandHelp("USER@HOST", CALIBRATE_HELP, CALIBRATE_EXAMPLES, ("calibration", "target")),
    "model": CommandHelp("[USER@HOST]", MODEL_HELP, MODEL_EXAMPLES, ("benchmark", "target", "run"), _BENCHMARKED_BY),
    "init": CommandHelp("KERNEL.py", INIT_HELP, INIT_EXAMPLES, ("run", "target"), ("shape", "function", "machine")),
    "clean": CommandHelp("[USER@HOST ...]", CLEAN_HELP, CLEAN_EXAMPLES, ("run", "target"), _CLEANED_BY),
    "evaluate": CommandHelp("KERNEL.py", EVALUATE_HELP, EVALUATE_EXAMPLES, ("run", "target"), _EXPLAINED_BY),
    "menu": CommandHelp("KERNEL.py", MENU_HELP, MENU_EXAMPLES, ("run", "target"), _EXPLAINED_BY),
    "apply": CommandHelp("KERNEL.py", APPLY_HELP, APPLY_EXAMPLES, ("run",), _APPLIED_BY),
    "mcp": CommandHelp("[USER@HOST ...]", MCP_HELP, MCP_EXAMPLES, ("run", "target", "model", "budget"), _SERVED_BY),
    "doctor": CommandHelp("[USER@HOST ...]", DOCTOR_HELP, DOCTOR_EXAMPLES, ("target",), _EXAMINED_BY),
    "show": CommandHelp("[RUN-ID]", SHOW_HELP, SHOW_EXAMPLES, ("run",), ("checkpoints",)),
    "runs": CommandHelp("", RUNS_HELP, "", ("run",), ("checkpoints",)),
    "diff": CommandHelp("[RUN-ID]", DIFF_HELP, "", ("run",), ("checkpoints",)),
    "config": CommandHelp("", CONFIG_HELP, CONFIG_EXAMPLES, (), ()),
    "explain": CommandHelp("[KERNEL.py | RUN-ID]", EXPLAIN_HELP, EXPLAIN_EXAMPLES, ("run", "target"), _EXPLAINED_BY),
}
