"""Rules about NKI's names: what was removed, renamed, or never existed."""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any

from nki_sim.lint.kernel_source import KernelSource
from nki_sim.lint.rules import Found, rule


def keywords_of(call: ast.Call) -> dict[str, ast.expr]:
    """Arguments given by name."""
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}


def nki_names(source: KernelSource) -> list[tuple[ast.expr, str, str]]:
    """(node, module, name) of every name of nki.isa and nki.language in kernel code."""
    found: list[tuple[ast.expr, str, str]] = []
    for node in source.in_kernels():
        if isinstance(node, (ast.Attribute, ast.Name)):
            module, _, name = source.dotted(node).rpartition(".")
            if module in ("nki.isa", "nki.language"):
                found.append((node, module, name))
    return found


@rule("0.2")
def old_namespace(source: KernelSource) -> Found:
    for node in ast.walk(source.tree):
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [f"{node.module}.{alias.name}" for alias in node.names]
            if isinstance(node, ast.ImportFrom) and node.module
            else []
        )
        for name in names:
            typing_only = name.startswith("neuronxcc.nki.typing")
            if name.startswith("neuronxcc.nki") and not typing_only:
                yield node, f"{name} is the namespace of NKI 0.1 (Beta 1)", f"import {name[len('neuronxcc.') :]}"


@rule("0.3")
def platform_target(source: KernelSource) -> Found:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and source.is_jit(node) and "platform_target" in keywords_of(node):
            yield (node, "nki.jit(platform_target=...) was removed", "set NEURON_PLATFORM_TARGET_OVERRIDE instead")


@rule("0.3", severity="warning")
def jit_mode(source: KernelSource) -> Found:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and source.is_jit(node) and "mode" in keywords_of(node):
            yield node, "nki.jit(mode=...) is ignored", "drop it; simulate with nki.simulate(kernel)(...)"


@rule("0.2", severity="warning")
def repeated_jit(source: KernelSource) -> Found:
    for function in source.entries:
        for node in [d for d in function.decorator_list if source.is_jit(d)][1:]:
            yield node, f"@nki.jit twice on {function.name}", "once is enough"


_REMOVED: dict[str, tuple[str, str]] = {
    "nki.baremetal": ("0.2", "use nki.jit"),
    "nki.benchmark": ("0.2", "time it with the profiler"),
    "nki.profile": ("0.2", "capture a profile with neuron-explorer"),
    "nki.simulate_kernel": ("0.2", "write nki.simulate(kernel)(...)"),
    "nki.trace": ("0.2", "use nki.jit"),
    "nki.language.arange": ("0.2", "index with slices or nl.ds(start, size)"),
    "nki.language.mgrid": ("0.2", "index with slices or nl.ds(start, size)"),
    "nki.language.par_dim": ("0.3", "the first dimension is the partition: nl.ndarray((128, n), ...)"),
    "nki.language.spmd_dim": ("0.2", "launch with kernel[lnc](...)"),
    "nki.isa.tensor_copy_dynamic_src": ("0.4", "nisa.tensor_copy(dst, src.ap(..., scalar_offset=...))"),
    "nki.isa.tensor_copy_dynamic_dst": ("0.4", "nisa.tensor_copy(dst.ap(..., scalar_offset=...), src)"),
}


def _removed_by(version: str) -> Callable[[KernelSource], Found]:
    def check(source: KernelSource) -> Found:
        for node in (*source.in_kernels(), *source.at_import()):
            if isinstance(node, ast.Attribute):
                since, hint = _REMOVED.get(source.dotted(node), ("", ""))
                if since == version:
                    yield node, f"{source.dotted(node)} does not exist from NKI {version}", hint

    check.__name__ = f"removed_in_{version}"
    return check


for _version in ("0.2", "0.3", "0.4"):
    rule(_version)(_removed_by(_version))


@rule("0.2", until="0.2")
def no_convenience_functions(source: KernelSource) -> Found:
    for node, module, name in nki_names(source):
        if module == "nki.language" and name in ("load", "store", "copy", "matmul", "softmax", "transpose"):
            yield node, f"nl.{name} does not exist in NKI 0.2", "call nki.isa instructions (dma_copy, nc_matmul, ...)"


_REMOVED_KEYWORDS: dict[tuple[str, str], tuple[str, str]] = {
    ("nki.isa.dma_copy", "dst_rmw_op"): ("0.3", "nisa.dma_compute(dst, srcs, reduce_op)"),
    ("nki.isa.dma_copy", "unique_indices"): ("0.3", "nisa.dma_compute(dst, srcs, reduce_op)"),
    ("nki.isa.tensor_copy", "dtype"): ("0.3", "the dtype is dst's"),
    ("nki.isa.register_move", "imm"): ("0.3", "src="),
    ("nki.language.shared_constant", "dtype"): ("0.2", "give the array that type: np.asarray(constant, dtype=...)"),
}


@rule("0.3")
def removed_keyword(source: KernelSource) -> Found:
    for call, name in source.calls():
        for keyword in keywords_of(call):
            _, hint = _REMOVED_KEYWORDS.get((name, keyword), ("", ""))
            if hint:
                yield call, f"{name} has no argument {keyword}= any more", hint


@rule("0.2")
def mask_keyword(source: KernelSource) -> Found:
    for call, name in source.calls():
        if name.startswith("nki.") and "mask" in keywords_of(call):
            yield (
                call,
                f"{name}(mask=...): masks are gone since NKI 0.2",
                "slice the tail: p = min(128, rows - r); t[0:p]",
            )


@rule("0.3")
def unknown_name(source: KernelSource) -> Found:
    from nki_sim.nki import isa, language  # the simulator's own tables; importing them costs time

    for node, module, name in nki_names(source):
        space: Any = isa if module == "nki.isa" else language
        if f"{module}.{name}" in _REMOVED or name in dir(space):
            continue
        close = difflib.get_close_matches(name, dir(space), 3)
        if module == "nki.isa" and name in dir(language):
            hint = f"use it as an op, e.g. nisa.tensor_tensor(..., op=nl.{name}) or nisa.activation(..., op=nl.{name})"
        else:
            hint = f"did you mean {', '.join(close)}?" if close else "see the API reference for what exists"
        yield node, f"{module} has no {name}", hint


@rule("0.3")
def call_signature(source: KernelSource) -> Found:
    """Arguments that the function does not take, and destinations left out."""
    from nki_sim.nki import isa, language

    spaces: dict[str, Any] = {"nki.isa": isa, "nki.language": language}
    for call, name in source.calls():
        module, _, short = name.rpartition(".")
        space = spaces.get(module)
        function = getattr(space, short, None) if space is not None and short in space.__all__ else None
        if not inspect.isfunction(function) or any(isinstance(a, ast.Starred) for a in call.args):
            continue
        if any(keyword.arg is None for keyword in call.keywords):
            continue
        keywords = {k: None for k in keywords_of(call) if (name, k) not in _REMOVED_KEYWORDS and k != "mask"}
        signature = inspect.signature(function)
        try:
            signature.bind(*[None] * len(call.args), **keywords)
        except TypeError as error:
            where = "nisa" if module == "nki.isa" else "nl"
            yield call, f"{where}.{short}: {error}", f"its arguments are {short}{signature_text(signature)}"


def signature_text(signature: inspect.Signature) -> str:
    """Names and defaults, without annotations."""
    parts = []
    for parameter in signature.parameters.values():
        value = parameter.default
        shown = f"{type(value).__name__.lower()}.{value.name}" if isinstance(value, Enum) else repr(value)
        parts.append(parameter.name + ("" if value is parameter.empty else f"={shown}"))
    return f"({', '.join(parts)})"


@rule("0.3")
def raw_enum(source: KernelSource) -> Found:
    wanted = {"engine": "nisa.engine.vector", "dge_mode": "nisa.dge_mode.hwdge", "oob_mode": "nisa.oob_mode.skip"}
    wanted |= {"reduce_cmd": "nisa.reduce_cmd.reset_reduce", "buffer": "nl.sbuf"}
    for call, name in source.calls():
        if not name.startswith("nki."):
            continue
        for keyword, value in keywords_of(call).items():
            if keyword in wanted and isinstance(value, ast.Constant) and isinstance(value.value, (int, str)):
                yield call, f"{keyword}={value.value!r}: numbers and strings are no enums", f"write {wanted[keyword]}"


@rule("0.3")
def output_memory(source: KernelSource) -> Found:
    called = {call.func.id for call, _ in source.calls() if isinstance(call.func, ast.Name)}
    for function in source.entries:
        if function.name in called:  # inlined into another kernel, it may return any tensor
            continue
        made: dict[str, ast.expr] = {}
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and isinstance(node.targets[0], ast.Name)
            ):
                if source.dotted(node.value.func) == "nki.language.ndarray":
                    keywords = keywords_of(node.value)
                    positional = node.value.args[2] if len(node.value.args) > 2 else None
                    buffer = keywords.get("buffer", positional)
                    if buffer is not None:
                        made[node.targets[0].id] = buffer
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for value in values:
                    buffer = made.get(value.id) if isinstance(value, ast.Name) else None
                    where = "" if buffer is None else source.dotted(buffer).rpartition(".")[2]
                    if where in ("hbm", "private_hbm", "sbuf", "psum"):
                        yield (
                            node,
                            f"the returned tensor is in nl.{where}",
                            "allocate outputs with buffer=nl.shared_hbm",
                        )


@rule("0.4", severity="warning")
def deprecated_sizes(source: KernelSource) -> Found:
    replaced = {"total_available_sbuf_size": "sbuf_fmax_bytes", "psum_fmax": "psum_bank_fmax"}
    for node in source.in_kernels():
        if isinstance(node, ast.Attribute) and node.attr in replaced:
            if source.dotted(node).startswith("nki.language.tile_size."):
                yield node, f"nl.tile_size.{node.attr} is deprecated", f"nl.tile_size.{replaced[node.attr]}"
