"""The API text that a language model reads, for one machine, generated from what the simulator implements.

So the text and the simulator cannot disagree: names and signatures are inspected, sentences are the
functions' own docstrings, sizes come from `nl.tile_size`. What the machine does not have is left out; what it
has beyond the simulator is named, and said not to be simulated.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
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
from nki_sim.nki.language.tile_size import TileSize
from nki_sim.program.memory import MemoryRegion
from nki_sim.tracing.tensor import NkiTensor

_COMMON = (
    "dma_copy",
    "tensor_copy",
    "tensor_tensor",
    "tensor_scalar",
    "activation",
    "nc_matmul",
    "nc_transpose",
    "tensor_reduce",
    "memset",
    "scalar_tensor_tensor",
    "reciprocal",
)
"""The instructions that most public kernels are made of; always described in full."""

_NEVER_PLANNED = (
    "core_", "get_", "rand_", "register_", "rng", "scalar_load", "scalar_store", "sendrecv", "sequence_", "set_rng_",
)  # fmt: skip
"""Other cores, random numbers, registers and scalars: nothing that makes a kernel of one core faster."""

_METHODS = ("reshape", "permute", "broadcast", "expand_dim", "squeeze_dim", "reshape_dim", "flatten_dims", "ap", "view")


def api_reference(kernel_source: str, machine: str, versions: Sequence[str] = COMMON, also: str = "") -> str:
    """Markdown for one kernel: the calls it makes, those that `also` (a plan) names and the common ones in full, the
    rest by name.

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
    full = [name for name in functions if name in _COMMON or name in named or f"nki.isa.{name}" in used]
    rest = [name for name in functions if name not in full]
    parts = [
        f"# {nki_text(versions)}: what this kernel may call",
        "`import nki, nki.isa as nisa, nki.language as nl`. `nisa` instructions write their `dst` and return nothing; "
        "`nl` functions return a new tile. Names that are not in here do not exist.",
        "## Sizes",
        _sizes(core),
        "## nisa instructions in full",
        *[f"### nisa.{name}{_signature(functions[name])}\n{_text(functions[name], core)}" for name in full],
        "## Other nisa instructions",
        f"Described where a plan names them: {', '.join(rest)}.",
        "## nisa enums",
        _enum_members(core),
        "## nl",
        _language(used, core, versions),
        "## Views of a tensor (no data moves)",
        "\n".join(
            f"- `t.{name}{_signature(getattr(NkiTensor, name))}` {_first_line(getattr(NkiTensor, name), core)}".rstrip()
            for name in _METHODS
        ),
    ]
    findings = sorted(
        {finding for version in versions for finding in check_source(kernel_source, version)},
        key=lambda finding: (finding.line, finding.message),
    )
    if findings:
        parts += [
            "## What this kernel already breaks",
            "\n".join(f"- line {f.line}: {f.message}; {f.hint}" for f in findings),
        ]
    return "\n\n".join(parts) + "\n"


def nki_text(versions: Sequence[str]) -> str:
    """`NKI 0.7`, or `NKI 0.3 to 0.7`."""
    return f"NKI {versions[0]}" + (f" to {versions[-1]}" if len(versions) > 1 else "")


def instruction_text(name: str, machine: str) -> str:
    """Markdown: one instruction in full; nothing where the machine has none of that name."""
    function = _isa_functions(core := known_machine(machine)).get(name)
    return "" if function is None else f"### nisa.{name}{_signature(function)}\n{_text(function, core)}"


def instruction_list(machine: str) -> str:
    """Markdown: every instruction in one line, for who plans a kernel of one core and does not write it.

    `machine` as for `api_reference`.
    """
    core = known_machine(machine)
    planned = {name: each for name, each in _isa_functions(core).items() if not name.startswith(_NEVER_PLANNED)}
    return f"{_one_line_each(planned, core)}\n\nValues of their options:\n{_enum_members(core)}"


def _one_line_each(functions: Mapping[str, Callable[..., Any]], core: Machine) -> str:
    return "\n".join(f"- `nisa.{name}{_signature(each)}` {_first_line(each, core)}" for name, each in functions.items())


def _enum_members(core: Machine) -> str:
    absent = _absent_modes(core)
    return "\n".join(
        f"- `nisa.{name}`: {', '.join(member for member in kind.__members__ if (name, member) not in absent)}"
        for name, kind in _enums().items()
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


def _sizes(core: Machine) -> str:
    sizes = TileSize(core)
    names = [name for name in dir(TileSize) if not name.startswith("_")]
    return "\n".join(f"- `nl.tile_size.{name}` = {getattr(sizes, name)}" for name in sorted(names))


def _dtypes(names: list[str], core: Machine) -> list[str]:
    has = [n for n in names if getattr(language, n).since <= core.neuron_core_version and n != "bool_"]
    beyond = [n for n in has if getattr(language, n).since > SIMULATED_VERSION]
    lines = [f"- dtypes: {', '.join(n for n in has if n not in beyond)}"]
    return lines + ([f"- dtypes that are not simulated: {', '.join(beyond)}"] if beyond else [])


def _language(used: set[str], core: Machine, versions: Sequence[str]) -> str:
    names = [
        name
        for name in dir(language)
        if not name.startswith("_") and (f"nki.language.{name}" in used or current_in(f"nki.language.{name}", versions))
    ]
    dtypes = [name for name in names if isinstance(getattr(language, name, None), DType)]
    buffers = [name for name in names if isinstance(getattr(language, name, None), MemoryRegion)]
    lines = [
        *_dtypes(dtypes, core),
        f"- buffers: {', '.join(buffers)}",
        f"- op tokens for `op=`, `op0=`, ...: {', '.join(sorted(OP_TOKENS))}",
    ]
    for name in names:
        function = getattr(language, name, None)
        if not inspect.isfunction(function) or name.startswith("annotations"):
            continue
        text = _text(function, core) if f"nki.language.{name}" in used else _first_line(function, core)
        lines.append(f"- `nl.{name}{_signature(function)}` {' '.join(text.split())}".rstrip())
    called = sorted(name for name in OPS if f"nki.language.{name}" in used or name not in OP_TOKENS)
    for name in called:
        function = tile_function(name)
        if function is not None:
            lines.append(f"- `nl.{name}{_signature(function)}` {' '.join(_text(function, core).split())}".rstrip())
    others = sorted(name for name in OPS if name not in called and tile_function(name) is not None)
    lines.append(f"- op tokens that can be called as well, for a new tile, with one tile or two: {', '.join(others)}")
    return "\n".join(lines)
