"""The ways from a kernel's source to a NEFF, one per SDK era, and which of them this machine has. Shipped.

Routes are data; what each does in the candidate's process is a function of the same name in
`neff_worker.py`. Nothing here imports a candidate.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelopt_core.evaluation import Installed, Step
from accelopt_core.toolchain import StepTimeout, ToolchainMissing
from infra.isolation import sandbox
from infra.neuron.commands import Installation, run_tool, this_machine
from nki_sim.machine import MACHINES

CHILD = Path(__file__).with_name("neff_worker.py")

DOCTOR = "run `orchestrator.py doctor`"

LNC = 1
"""Physical cores per logical one, for the kernel and for the graph around it alike.

Unset, a kernel is compiled for 1 and a graph by neuronx-cc for 2 on Trn2 and later; from SDK 2.33 on that is refused
as NCC_EVRF066 (compiler/error-codes/EVRF066.html).
"""

SDK_OF_NKI = {
    (0, 2): "2.27 or 2.28", (0, 3): "2.29", (0, 4): "2.30", (0, 5): "2.31", (0, 6): "2.32", (0, 7): "2.33",
}  # fmt: skip
"""NKI release notes (aws-neuron-sdk, release-notes/components/nki.rst); 0.7: NKI's migration page of SDK 2.33.1."""

DIALECT_OF_WHEEL = {(0, 1): (0, 2)}
"""Where the number of the wheel is not that of its dialect: SDK 2.27 ships NKI 0.2 as `nki 0.1.0`.

The package manifest (n2-manifest.json) has that wheel, the migration page gives NKI 0.2.0 to 2.27 and 2.28 alike.
"""

Release = tuple[int, int]


@dataclass(frozen=True)
class Route:
    """One way from a kernel's source to a NEFF."""

    name: str
    title: str
    modules: tuple[str, ...]
    """All must be importable by the interpreter that compiles."""
    nki_from: tuple[int, int] | None
    """None: the era before the `nki` package."""
    nki_below: tuple[int, int] | None = None
    environment: tuple[tuple[str, str], ...] = ()
    """With `{machine}`, `{lnc}` and `{cache}`, a folder of this one compilation, filled in."""
    package: tuple[str, Release | None, Release | None] | None = None
    """Another package whose version decides: its name, from, below."""
    pythons: tuple[Release, Release] | None = None
    """First and last Python that it is documented for; whether it can be imported decides."""
    undocumented: tuple[str, ...] = ()
    """What it relies on that no page of AWS describes; `doctor` names it."""


_TORCH_NATIVE = (2, 13)
"""torch-neuronx is XLA-based up to 2.9, which is frozen, and native from 2.13 on (release-notes/components/
torchneuron.rst of SDK 2.33). Between them nothing was released; what is there then is told by `torch_xla`."""

_NEFF_IN_CACHE = "that a kernel called eagerly leaves its NEFF in TORCH_NEURONX_NEFF_CACHE_DIR (if not: inspection)"

ROUTES = (
    Route("standalone", "NKI >= 0.3 called with NumPy arrays", ("nki", "nki.language"), (0, 3)),
    Route(
        "compile-driver",
        "nki.compiler.driver (NKI 0.4, 0.5)",
        ("nki.compiler.driver", "nki.compiler.frontend", "nki.framework.kernel"),
        (0, 4),
        (0, 6),
        undocumented=("modules nki.compiler.driver, nki.compiler.frontend, nki.framework.kernel",),
    ),
    Route(
        "compile-kernel",
        "nki.framework.compiled.CompileKernel (NKI 0.2, 0.3)",
        ("nki.framework.compiled",),
        (0, 2),
        (0, 4),
        undocumented=("module nki.framework.compiled",),
    ),
    Route(
        "torch-neuron",
        "NKI inside native PyTorch, device neuron (torch-neuronx >= 2.13, SDK >= 2.33)",
        ("nki", "torch", "torch_neuronx"),
        (0, 7),
        None,
        (
            ("TORCH_NEURONX_NEFF_CACHE_DIR", "{cache}"),  # else /tmp, where a candidate would meet another's NEFF
            ("TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR", "{cache}/local"),
        ),
        ("torch-neuronx", _TORCH_NATIVE, None),
        ((3, 12), (3, 14)),
        (_NEFF_IN_CACHE, "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR"),
    ),
    Route(
        "torch-xla",
        "NKI inside PyTorch/XLA (torch-neuronx <= 2.9, SDK >= 2.28)",
        ("nki", "torch", "torch_xla", "torch_neuronx"),
        (0, 2),
        None,
        (
            ("NEURON_CC_FLAGS", "--target {machine} --lnc {lnc} --auto-cast=none"),
            ("XLA_IR_DEBUG", "1"),
            ("XLA_HLO_DEBUG", "1"),
        ),
        ("torch-neuronx", None, _TORCH_NATIVE),
    ),
    Route(
        "baremetal",
        "Beta 1, neuronxcc.nki.baremetal (SDK <= 2.26)",
        ("neuronxcc", "neuronxcc.nki"),
        None,
        None,
        (("NEURON_CC_FLAGS", "--auto-cast=none"),),
    ),
)
"""In the order in which they are tried: what needs no framework first, then what is still developed."""


@dataclass(frozen=True)
class ProbeResult:
    route: str
    title: str
    available: bool
    why_not: str | None
    python: str | None = None
    versions: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    """In which the interpreter's own files and packages lie."""
    python_version: str = ""


# --- finding out ----------------------------------------------------------------------------------


def probe_all(installation: Installation | None = None) -> tuple[ProbeResult, ...]:
    """Every route in order, with what is missing where it is not available."""
    return tuple(probe_routes(installation or this_machine()))


def probe_routes(where: Installation) -> Iterator[ProbeResult]:
    """The same, one at a time: an interpreter is asked only when a route needs to know."""
    asked: dict[Path, dict[str, Any]] = {}
    for route in ROUTES:
        reasons = []
        for python in where.pythons:
            if not python.exists():
                continue
            if python not in asked:
                asked[python] = ask_interpreter(where, python)
            why = _why_not(route, asked[python])
            if why is None:
                versions = sorted((str(name), str(version)) for name, version in asked[python]["packages"].items())
                folders = tuple(str(folder) for folder in asked[python]["folders"])
                version = str(asked[python]["python"])
                yield ProbeResult(route.name, route.title, True, None, str(python), tuple(versions), folders, version)
                break
            reasons.append(f"{python}: {why}")
        else:
            yield ProbeResult(route.name, route.title, False, "; ".join(reasons) or "no Python interpreter was found")


def ask_interpreter(where: Installation, python: Path, really_import: tuple[str, ...] = ()) -> dict[str, Any]:
    """`packages` (name to version), `modules` (name to None, or why it cannot be imported), `folders`, `python`.

    Modules are looked for and not imported, except those in `really_import`.
    """
    modules = sorted({module for route in ROUTES for module in route.modules})
    job = json.dumps({"modules": modules, "import": really_import}).encode()
    with tempfile.TemporaryDirectory(prefix="nki-probe-") as folder:
        finished = sandbox.run(
            [str(python), "-I", str(CHILD), "--probe"],
            cwd=Path(folder),
            stdin=job,
            limits=sandbox.ProcessLimits(deadline_s=120, memory_bytes=0),
            env={"HOME": folder, "PATH": search_path(where, python)},
        )
    for line in reversed(finished.output.splitlines()):
        try:
            found = json.loads(line)
            return {
                "packages": dict(found["packages"]),
                "modules": dict(found["modules"]),
                "folders": list(found["folders"]),
                "python": str(found["python"]),
            }
        except (ValueError, KeyError, TypeError):
            continue
    return {
        "packages": {},
        "modules": dict.fromkeys(modules, "is unknown: the interpreter does not run"),
        "folders": [],
        "python": "",
    }


def _why_not(route: Route, found: Mapping[str, Any]) -> str | None:
    version = found["packages"].get("nki")
    release = nki_release(version)
    if version is not None and release == (0, 0):
        return f"nki {version} is the empty package of PyPI; the real one is on pip.repos.neuron.amazonaws.com"
    if route.nki_from is None and release is not None:
        return f"NKI {version} is installed, whose dialect Beta 1 does not compile"
    if route.nki_from is not None:
        if version is None or release is None:
            return "nki is not installed" if version is None else f"nki has the unknown version {version}"
        if release < route.nki_from or (route.nki_below is not None and release >= route.nki_below):
            return f"NKI {version} is not of this era"
    other = _package_of_another_route(route, found["packages"])
    if other is not None:
        return other
    missing = [f"{module} {why}" for module in route.modules if (why := found["modules"].get(module, "is not known"))]
    if not missing and route.package and _release(found["packages"].get(route.package[0])) is None:
        return f"{route.package[0]} has the unknown version {found['packages'].get(route.package[0], 'none')}"
    return missing[0] if missing else None


def _package_of_another_route(route: Route, packages: Mapping[str, str]) -> str | None:
    if route.package is None:
        return None
    name, first, below = route.package
    version = packages.get(name)
    release = _release(version)
    if release is None:
        return None
    if first is not None and release < first:
        return f"{name} {version} is the XLA-based one, before {first[0]}.{first[1]}"
    if below is not None and release >= below:
        return f"{name} {version} is the native one, without XLA"
    return None


def why_taken(results: Sequence[ProbeResult]) -> str | None:
    """Of the routes that were probed, which one kernels are compiled by and why; None where there is none."""
    there = [result for result in results if result.available]
    if not there:
        return None
    taken = there[0]
    versions = dict(taken.versions)
    known = [f"{name} {versions[name]}" for name in ("nki", "neuronx-cc", "torch-neuronx") if name in versions]
    others = ", ".join(result.route for result in there[1:])
    order = f"the first that works here; {others} would work too" if others else "the only one that works here"
    return f"{taken.route}: {order} (Python {taken.python_version}, {', '.join(known)})"


def relied_on(result: ProbeResult) -> tuple[str, ...]:
    """What a route that works here needs and AWS does not document, and a Python that it is not documented for."""
    route = next(route for route in ROUTES if route.name == result.route)
    lines = [f"route {route.name}: {what}" for what in route.undocumented]
    python = _release(result.python_version)
    if route.pythons and python and not route.pythons[0] <= python <= route.pythons[1]:
        (a, b), (c, d) = route.pythons
        lines.append(
            f"route {route.name}: Python {result.python_version}, where {a}.{b} to {c}.{d} are documented; it imports"
        )
    return tuple(lines)


def nki_release(version: str | None) -> Release | None:
    """The dialect of an `nki` wheel."""
    release = _release(version)
    return DIALECT_OF_WHEEL.get(release, release) if release else None


def _release(version: str | None) -> Release | None:
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found.group(1)), int(found.group(2))) if found else None


def installed(versions: Mapping[str, str], kind: str | None) -> Installed:
    """What the packages' versions say; `unknown` for an SDK that its NKI does not tell."""
    sdk = SDK_OF_NKI.get(nki_release(versions.get("nki")) or (-1, -1), "unknown")
    compiler = next((f"{name} {versions[name]}" for name in ("neuronx-cc", "nki") if name in versions), "unknown")
    return Installed(sdk, compiler, kind or "unknown")


def instance_type(installation: Installation) -> str | None:
    """E.g. `trn2.48xlarge`: what the firmware says on EC2, else what neuron-ls prints."""
    try:
        name = (installation.system_folder / "devices/virtual/dmi/id/product_name").read_text(encoding="utf-8").strip()
    except OSError:
        name = ""
    if re.match(r"(trn|inf)\d", name):
        return name
    tool = installation.tool("neuron-ls")
    if tool is None:
        return None
    with tempfile.TemporaryDirectory(prefix="nki-probe-") as folder:
        try:
            said = run_tool([str(tool)], cwd=Path(folder), timeout_s=30, step=Step.EXAMINE)
        except (StepTimeout, ToolchainMissing):
            return None
    found = re.search(r"instance-type:\s*(\S+)", said.text)
    return found.group(1) if found else None


def machine_of(kind: str | None) -> str | None:
    """`trn2` of `trn2u.48xlarge`; None for no instance of a machine that is known."""
    found = re.match(r"trn\d", kind or "")
    return found.group(0) if found and found.group(0) in MACHINES else None


def search_path(where: Installation, python: Path) -> str:
    """The interpreter's own folder first: neuronx-cc lies beside it."""
    return os.pathsep.join([str(python.parent), where.path_variable])
