"""The tools by name: what each does and when, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass

from infra.agents import requests

INSTRUCTIONS = """\
Makes NKI kernels (AWS Trainium) faster, and proves them right. Files are named below one folder; nothing outside of it
is read or written. The loop: (init KERNEL, if it has no reference) -> evaluate KERNEL -> menu KERNEL -> try the best
changes, two calls at a time -> go on from the fastest that is right, whose menu came with it. Edit a kernel by hand
where the menu is `blocked`, then evaluate it with original=KERNEL. Stop when the menu has only ties, or three tries
running gained nothing. start_run does the loop by itself in the background. A latency with simulated=true was not measured
on a device: say so wherever you report it."""

GRACE_S = 20.0
"""For a run to finish its step and save, when it is to end; all else ends at once."""


@dataclass(frozen=True)
class Tool:
    name: str
    says: str
    """For an agent: what it does, and what to call next."""
    takes: type[requests.Request]
    writes: bool = False
    limit_s: float = 120.0
    """Where its request has no `seconds`."""


TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "init",
            "Writes the beginning of a kernel's NumPy reference, KERNEL_reference.py, and returns its text. Next: fill "
            "in each TODO in the file, then evaluate.",
            requests.Init,
            writes=True,
        ),
        Tool(
            "evaluate",
            "Compiles a kernel, verifies it against its NumPy reference with many seeds and input distributions, some "
            "of them secret, and times it. Only verdict `measured` is right and has a latency; `said` is the reason in "
            "one line. measured.gaps: where the time goes. Next: menu, or mend what `said` names.",
            requests.Evaluate,
        ),
        Tool(
            "menu",
            "The built-in catalogue's changes that apply to a kernel, best first, each with its predicted gain (`tie`: "
            "too little to tell), and what keeps it from closing the larger gaps. Next: try the first two or three.",
            requests.Menu,
        ),
        Tool(
            "try",
            "Applies one change of a kernel's menu, writes the new kernel to a new file, evaluates it beside the old "
            "one, and returns the diff, the evaluation with its speedup and, where it is not slower, the new kernel's "
            "menu. Next: try that menu's first; or another change of the old one.",
            requests.Try,
            writes=True,
        ),
        Tool(
            "profile",
            "A kernel's simulated latency in seconds, without verifying anything: hot lines, stalls, profiler fields. "
            "For a quick look while you edit. Next: evaluate.",
            requests.Profile,
        ),
        Tool(
            "check",
            "What the NKI compiler of a version rejects although Python runs it, by line; nothing is run. Next: mend "
            "each error, then evaluate.",
            requests.Check,
        ),
        Tool(
            "facts",
            "For writing a kernel by hand: the machine, the API (with `name`: one instruction in full), common "
            "mistakes, techniques, what earlier runs remember. Next: edit, then evaluate.",
            requests.Facts,
        ),
        Tool(
            "migrate",
            "Rewrites a kernel of NKI 0.1 to 0.6 for 0.7 and writes it to `output`; what needs a person is marked "
            "there and listed in `left`. Next: check, then evaluate `output`.",
            requests.Migrate,
            writes=True,
        ),
        Tool(
            "doctor",
            "What works where kernels are evaluated. Call it when evaluate says that nothing can be evaluated.",
            requests.Doctor,
        ),
        Tool(
            "start_run",
            "Starts a whole optimization of one kernel in the background, which ends with this server. Minutes to "
            "hours. Next: follow_run with its run_id.",
            requests.StartRun,
            writes=True,
            limit_s=300.0,
        ),
        Tool(
            "resume_run",
            "Goes on with a run that was stopped or interrupted. Next: follow_run.",
            requests.ResumeRun,
            writes=True,
            limit_s=300.0,
        ),
        Tool(
            "follow_run",
            "How far a run is, or what it came to: attempts, best_kernel (a path), the difference. Next: "
            "wait_seconds=60 until under_way is false; then evaluate best_kernel.",
            requests.FollowRun,
        ),
        Tool(
            "stop_run",
            "Ends a run of this server after the step at hand, saved; resume_run goes on with it.",
            requests.StopRun,
            writes=True,
        ),
    )
}

OF_THE_COMMAND_LINE = {"run": "start_run", "optimize": "start_run", "show": "follow_run", "apply": "try"}
"""What the commands are called that do the same."""
