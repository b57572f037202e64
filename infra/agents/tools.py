"""The tools by name: what each does and when, what it takes, which document it gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infra.agents import requests

INSTRUCTIONS = """\
Makes NKI kernels (AWS Trainium) faster, and proves them right. Files are named below one folder; nothing outside of it
is read or written. The loop: evaluate KERNEL -> menu KERNEL -> apply one change to a new file -> evaluate that file
with original=KERNEL -> keep it if it is right and faster -> menu again. Edit a kernel by hand between these steps where
the menu is `blocked`. start_run does the same loop by itself in the background. A latency with simulated=true was not
measured on a device: say so wherever you report it."""

_SCHEMAS = Path(__file__).resolve().parents[1] / "documents" / "schemas"

GRACE_S = 20.0
"""For a run to finish its step and save, when it is to end; all else ends at once."""

_WRITES = " Writes one new file, and overwrites none unless told to."


@dataclass(frozen=True)
class Tool:
    name: str
    says: str
    """For an agent: what it does, and what to call next."""
    takes: type[requests.Request]
    gives: str
    """Its document, by name and version."""
    writes: bool = False
    limit_s: float = 120.0
    """Where its request has no `seconds`."""

    @property
    def schema(self) -> Path:
        """The file that says what its document looks like."""
        return _SCHEMAS / f"{self.gives.replace('/', '-')}.schema.json"


TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "evaluate",
            "Compiles a kernel, verifies it against its NumPy reference with many seeds and input distributions, some "
            "of them secret, and times it. verdict `measured` means right, and only then there is a latency; `said` is "
            "the reason in one line for all others. measured.likely says how far a device may be from a simulated "
            "latency, measured.gaps where the time goes. Next: menu, or mend what `said` names and evaluate again.",
            requests.Evaluate,
            "evaluation/1",
        ),
        Tool(
            "profile",
            "A kernel's simulated latency in seconds, without verifying anything: hot lines, stalls, profiler fields. "
            "For a quick look while you edit. Next: evaluate, before you believe that it is right.",
            requests.Profile,
            "profile/1",
        ),
        Tool(
            "check",
            "What the NKI compiler of a version rejects although Python runs it, by line; nothing is run. Next: mend "
            "each error, then evaluate.",
            requests.Check,
            "check/1",
        ),
        Tool(
            "menu",
            "The built-in catalogue's changes that apply to a kernel, best first, each with the gain predicted by the "
            "simulated machine (`tie`: too little to tell), and what keeps it from closing the larger gaps. Next: "
            "apply the first change, with its tool and site copied; or change by hand what is blocked.",
            requests.Menu,
            "menu/1",
        ),
        Tool(
            "apply",
            "Carries out one change of a kernel's menu and writes the new kernel to `output`. Nothing of it is run. "
            "Next: evaluate `output` with original= the kernel, and compare latencies." + _WRITES,
            requests.Apply,
            "changed/1",
            writes=True,
        ),
        Tool(
            "migrate",
            "Rewrites a kernel of NKI 0.1 to 0.6 for 0.7 and writes it to `output`; what needs a person is marked "
            "there and listed in `left`. Next: check, then evaluate `output`." + _WRITES,
            requests.Migrate,
            "migration/1",
            writes=True,
        ),
        Tool(
            "doctor",
            "What works where kernels are evaluated: toolchain, versions, a known kernel. Call it when evaluate says "
            "that nothing can be evaluated.",
            requests.Doctor,
            "doctor/1",
        ),
        Tool(
            "start_run",
            "Starts a whole optimization of one kernel in the background, as a process of its own that ends with this "
            "server, and answers once it is under way. Minutes to hours. Next: follow_run with its run_id.",
            requests.StartRun,
            "run/1",
            writes=True,
            limit_s=300.0,
        ),
        Tool(
            "resume_run",
            "Goes on with a run that was stopped or interrupted. Nothing is paid for twice. Next: follow_run.",
            requests.ResumeRun,
            "run/1",
            writes=True,
            limit_s=300.0,
        ),
        Tool(
            "follow_run",
            "How far a run is, or what it came to: every attempt, the best kernel (its path in best_kernel), the "
            "difference. Next: wait_seconds=60 until under_way is false; then evaluate best_kernel.",
            requests.FollowRun,
            "run/1",
        ),
        Tool(
            "stop_run",
            "Ends a run of this server after the step at hand, saved; resume_run goes on with it.",
            requests.StopRun,
            "run/1",
            writes=True,
        ),
    )
}
