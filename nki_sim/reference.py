"""The API text that a language model reads, for one machine, generated from what the simulator implements.

So the text and the simulator cannot disagree: names and signatures are inspected, sentences are the
functions' own docstrings, sizes come from `nl.tile_size`. What the machine does not have is left out; what it
has beyond the simulator is named, and said not to be simulated.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from nki_sim.dtypes import DType
from nki_sim.isa.generations import MODES_SINCE, SINCE
from nki_sim.lint import COMMON, VERSIONS, check_source
from nki_sim.lint.kernel_source import KernelSource
from nki_sim.lint.name_rules import signature_text
from nki_sim.lint.tracing_rules import current_in
from nki_sim.machine import SIMULATED_VERSION, Machine
from nki_sim.machine import machine as known_machine
from nki_sim.nki import isa, language
from nki_sim.nki.language.ops import OP_TOKENS, OPS, tile_function
from nki_sim.program.memory import MemoryRegion
from nki_sim.tracing.tensor import NkiTensor

_NEVER_PLANNED = (
    "core_", "get_", "rand", "register_", "rng", "scalar_load", "scalar_store", "sendrecv", "sequence_", "set_rng_",
    "device_print", "dropout", "is_", "num_programs", "program_",
)  # fmt: skip
"""Other cores, random numbers, registers and scalars: nothing that makes a kernel of one core faster."""

_NOT_CHOSEN = ("nc_version", "dma_engine")
"""Enums that no argument of a planned instruction takes."""

_METHODS = ("reshape", "permute", "broadcast", "expand_dim", "squeeze_dim", "reshape_dim", "flatten_dims", "ap", "view")


def api_reference(kernel_source: str, machine: str, versions: Sequence[str] = COMMON, also: str = "") -> str:
    """Markdown for who changes one kernel by a plan: the calls that `also` (the plan) names; where it names none, those
    that the kernel makes.

    `machine`: a key of `nki_sim.machine.MACHINES`. `versions`: of NKI; what one of them lacks or deprecates is left
    out, unless the kernel uses it. Raises KeyError for an unknown machine, and ValueError for an NKI version that the
    linter does not know.
    """
    core = known_machine(machine)
    for version in versions:
        if version not in VERSIONS:
            raise ValueError(f"NKI version {version!r}: one of {', '.join(VERSIONS)}")
    used = _used_names(kernel_source)
    functions = {
        name: function
        for name, function in _isa_functions(core).items()
        if f"nki.isa.{name}" in used or current_in(f"nki.isa.{name}", versions)
    }
    named = set(re.findall(r"\w+", also))
    told = [name for name in functions if name in named] or [n for n in functions if f"nki.isa.{n}" in used]
    views = {name: getattr(NkiTensor, name) for name in _METHODS if name in named or f".{name}(" in kernel_source}
    parts = [
        f"## API of {nki_text(versions)} that this takes",
        *[f"### nisa.{name}{_signature(functions[name])}\n{_text(functions[name], core)}" for name in told],
        *_language(set(re.findall(r"\bnl\.(\w+)", also)), core, versions),
        *[f"- `t.{name}{_signature(each)}` {_first_line(each, core)}".rstrip() for name, each in views.items()],
    ]
    findings = sorted(
        {finding for version in versions for finding in check_source(kernel_source, version)},
        key=lambda finding: (finding.line, finding.message),
    )
    if findings:
        parts += [
            "What this kernel already breaks:",
            "\n".join(f"- line {f.line}: {f.message}; {f.hint}" for f in findings),
        ]
    return "\n".join(part for part in parts if part) + "\n"


def nki_text(versions: Sequence[str]) -> str:
    """`NKI 0.7`, or `NKI 0.3 to 0.7`."""
    return f"NKI {versions[0]}" + (f" to {versions[-1]}" if len(versions) > 1 else "")


def instruction_text(name: str, machine: str) -> str:
    """Markdown: one instruction in full; nothing where the machine has none of that name."""
    function = _isa_functions(core := known_machine(machine)).get(name)
    return "" if function is None else f"### nisa.{name}{_signature(function)}\n{_text(function, core)}"


def instruction_list(machine: str, versions: Sequence[str] = COMMON) -> str:
    """Everything by name that a kernel of one core may call. Arguments as for `api_reference`."""
    core = known_machine(machine)
    planned = [name for name in _isa_functions(core)
               if current_in(f"nki.isa.{name}", versions) and not name.startswith(_NEVER_PLANNED)]  # fmt: skip
    functions = [name for name in dir(language) if inspect.isfunction(getattr(language, name)) and name[0] != "_"]
    functions = [n for n in functions if current_in(f"nki.language.{n}", versions) and not n.startswith(_NEVER_PLANNED)]
    tokens = sorted(n for n in OP_TOKENS if not n.endswith("_dx") and not n.startswith(("bitwise_", "logical_")))
    has = [name for name, kind in _kinds(DType) if kind.since <= core.neuron_core_version and name != "bool_"]
    beyond = [name for name in has if getattr(language, name).since > SIMULATED_VERSION]
    return "\n".join(
        [
            f"- `nisa`: {', '.join(planned)}; their options: {_enum_members(core)}",
            f"- `nl` functions: {', '.join(functions)}",
            f"- `nl` for `op=`, functions too: {', '.join(tokens)}; logical_, bitwise_, gelu_dx ...",
            f"- `nl` dtypes: {', '.join(has)}{f' (not simulated: {chr(44).join(beyond)})' if beyond else ''}; buffers: "
            f"{', '.join(name for name, _ in _kinds(MemoryRegion))}; views of a tensor: {', '.join(_METHODS)}",
        ]
    )


def _enum_members(core: Machine) -> str:
    absent = _absent_modes(core)
    return "; ".join(
        f"`{name}`: {', '.join(each for each in kind.__members__ if (name, each) not in absent)}"
        for name, kind in _enums().items()
        if name not in _NOT_CHOSEN
    )


def _absent_modes(core: Machine) -> set[tuple[str, str]]:
    """(enum, member) of what the machine does not have."""
    return {mode for mode, since in MODES_SINCE.items() if since > core.neuron_core_version}


def _used_names(kernel_source: str) -> set[str]:
    try:
        source = KernelSource(ast.parse(kernel_source))
    except (SyntaxError, ValueError):  # the text is for repairing such a kernel too
        return set()
    return {source.dotted(node) for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)}


def _isa_functions(core: Machine) -> dict[str, Callable[..., Any]]:
    """Instructions that the machine has, by name."""
    return {
        name: getattr(isa, name)
        for name in sorted(isa.__all__)
        if inspect.isfunction(getattr(isa, name)) and SINCE.get(name, 0) <= core.neuron_core_version
    }


def _enums() -> dict[str, type[Enum]]:
    found = {name: getattr(isa, name) for name in sorted(isa.__all__)}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, Enum)}


def _signature(function: Callable[..., Any]) -> str:
    """Nothing for what is not simulated: its arguments are not known here."""
    if SINCE.get(function.__name__, 0) > SIMULATED_VERSION:
        return ""
    signature = inspect.signature(function)
    shown = [p for name, p in signature.parameters.items() if name not in ("self", "name")]
    return signature_text(signature.replace(parameters=shown))


def _text(function: Callable[..., Any], core: Machine) -> str:
    """The docstring without its sentences about modes that the machine does not have."""
    text = inspect.cleandoc(function.__doc__ or "")
    for _, mode in _absent_modes(core):
        text = re.sub(rf"\s*(?:[^.]|\.(?=\S))*\b{mode}\b(?:[^.]|\.(?=\S))*\.", "", text)
    return text


def _first_line(function: Callable[..., Any], core: Machine) -> str:
    return _text(function, core).partition("\n")[0]


def _kinds(kind: type) -> list[tuple[str, Any]]:
    """What `nl` has of a type, by name."""
    return [(name, value) for name in dir(language) if isinstance(value := getattr(language, name), kind)]


def _language(named: set[str], core: Machine, versions: Sequence[str]) -> list[str]:
    """A line for each `nl` function that is named, beside the operators."""
    lines = []
    for name in sorted(named - OP_TOKENS):
        function = tile_function(name) if name in OPS else getattr(language, name, None)
        if inspect.isfunction(function) and current_in(f"nki.language.{name}", versions):
            lines.append(f"- `nl.{name}{_signature(function)}` {' '.join(_text(function, core).split())}".rstrip())
    return lines
