"""Triton as the rest of the program asks for a language."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from accelopt_core.candidate import parsed
from accelopt_core.language import Finding
from accelopt_core.languages.python_file import PythonFile
from nki_optimizer_triton.language import static_checks
from nki_optimizer_triton.language.gpus import DEFAULT, GPUS
from nki_optimizer_triton.language.operators import kernel_operators


@dataclass(frozen=True)
class Triton:
    key: str = "triton"
    name: str = "Triton"
    core: str = "GPU"
    several_cores: str = ""
    machines: tuple[str, ...] = (DEFAULT, *(name for name in GPUS if name != DEFAULT))
    packages: frozenset[str] = frozenset({"triton"})
    entry_points: tuple[str, ...] = ("run", "kernel")
    marked: str = "that launches a Triton kernel"

    def kernels(self, source: str) -> list[str]:
        """Plain functions of the file that launch, as `name[grid](...)`; without any, all plain functions."""
        file = PythonFile(parsed(source))
        plain = [node for node in file.functions.values() if not any(_is_jit(file, d) for d in node.decorator_list)]
        launching = [node.name for node in plain if any(map(_is_launch, ast.walk(node)))]
        return launching or [node.name for node in plain if node.name in self.entry_points]

    def peaks(self, machine: str) -> str:
        gpu = GPUS.get(machine)
        if gpu is None:
            return ""
        rates = [("float32", gpu.vector_flops_per_s.get("float32")), ("bfloat16", gpu.flops_per_s("bfloat16"))]
        said = [f"{rate / 1e12:,.1f} TFLOPS of {dtype} products" for dtype, rate in rates if rate is not None]
        if gpu.memory_bytes_per_s is not None:
            said.append(f"{gpu.memory_bytes_per_s / 1e9:,.0f} GB/s of memory")
        return f"peaks of {gpu.label}: {', '.join(said)}"

    def forbidden(self, source: str, neighbours: frozenset[str] = frozenset()) -> list[Finding]:
        return static_checks.forbidden(source, neighbours)

    def notes(self, source: str) -> list[Finding]:
        """Nothing: which Triton is there, its compiler says itself."""
        return []

    def operators(self, source: str) -> tuple[str, ...]:
        return kernel_operators(source)


def _is_jit(file: PythonFile, decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return file.dotted(target) in ("triton.jit", "triton.runtime.jit.jit")


def _is_launch(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)


TRITON = Triton()
