"""Copy a tile out of PSUM on the Scalar engine, so that what reads it can run on any engine.

                                                 product_out = ndarray(shape, buffer=sbuf)
tensor_tensor(dst=y, data1=x, data2=product)  -> tensor_copy(dst=product_out, src=product, engine=scalar)
                                                 tensor_tensor(dst=y, data1=x, data2=product_out)

By itself this only adds a copy. But GpSimd has no path to PSUM, and Scalar does not combine two tiles: where Vector is
full and both of them idle, the copy opens the way for the work itself. A copy that is there already is moved by
`move-elementwise-work`, and taken away by `drop-copy`.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, KernelModule, Site
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement, read_kernel
from accelopt_core.transforms.one_instruction import InstructionTransform, counted, instead_of
from accelopt_core.transforms.plain_names import check_fixed, made_once
from accelopt_core.transforms.private_tile import is_float32
from accelopt_core.transforms.syntax import name_nodes, replace_nodes

READERS = ("scalar_tensor_tensor", "tensor_reduce", "tensor_scalar", "tensor_tensor")
"""Elementwise instructions that run on Vector unless told otherwise."""
OPERANDS = ("data", "data1", "data2", "operand0", "operand1")


class EvacuatePsum(InstructionTransform[tuple[str, str]]):
    name = "evacuate-psum"
    addresses = frozenset({Cause.ELEMENTWISE})
    gone = "has no elementwise instruction that reads a tile of PSUM"

    def describe(self) -> str:
        return "Copy a tile out of PSUM on the Scalar engine, so that the work on it can move from Vector to GpSimd."

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        vector, scalar = (context.fields.get(f"{engine}_engine_active_time") for engine in ("vector", "scalar"))
        if vector is not None and scalar is not None and vector <= scalar:
            why = IllegalSite(f"Scalar, which would copy, works {1e6 * scalar:,.1f} µs, Vector {1e6 * vector:,.1f} µs")
            for key, reader in self.candidates(read_kernel(module)):
                context.refuse(self.name, key, reader.line, why)
            return ()
        return super().analyze(module, context)

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        return counted(_readers(code))

    def check(self, code: KernelCode, key: str, instruction: Statement) -> tuple[str, str]:
        return _check(code, _tile(key), instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: tuple[str, str]) -> Site:
        tile = _tile(key)
        return Site(
            self.name,
            key,
            f"copy {tile} out of PSUM on the scalar engine before line {instruction.line} reads it",
            instruction.line,
            f"the copy has the dtype and the shape of {tile}, and nothing comes between it and its reader",
            "what reads it need not run on an engine with a path to PSUM any more",
        )

    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: tuple[str, str]) -> cst.Module:
        return _rewritten(code, _tile(key), instruction, found)


def _tile(key: str) -> str:
    return key.partition("#")[0]


def _readers(code: KernelCode) -> Iterator[tuple[str, Statement]]:
    """Every whole tile of PSUM that an elementwise instruction reads, with that instruction."""
    for statement in code.statements():
        if statement.kind is Kind.INSTRUCTION and statement.operation in READERS:
            operands = [code.argument(statement, keyword) for keyword in OPERANDS]
            for tile in dict.fromkeys(operand.value for operand in operands if isinstance(operand, cst.Name)):
                if code.regions_of(cst.Name(tile)) == {"psum"}:
                    yield tile, statement


def _check(code: KernelCode, tile: str, reader: Statement) -> tuple[str, str]:
    """Shape and dtype of the copy, as text. Raises IllegalSite."""
    where = f"line {reader.line}"
    call = reader.call
    assert call is not None
    if any(arg.keyword is None for arg in call.args):
        raise IllegalSite(f"{where} passes operands by position")
    if not isinstance(call.func, cst.Attribute) or not code.name_of_module("nki.language"):
        raise IllegalSite(f"{where}: the name of nki.isa or nki.language is not at hand")
    engine = code.argument(reader, "engine")
    if engine is not None and not code.qualified(engine).endswith(".vector"):
        raise IllegalSite(f"{where} does not run on the Vector engine")
    if tile in code.changed_by(reader):
        raise IllegalSite(f"{where} writes {tile} as well")
    if sum(node.value == tile for node in name_nodes(reader.node)) != len(_whole(code, tile, reader)):
        raise IllegalSite(f"{where} reads a part of {tile} as well")
    made = made_once(code, tile)
    shape, dtype = code.argument(made, "shape", 0), code.argument(made, "dtype", 1)
    if not isinstance(shape, cst.Tuple) or dtype is None or not is_float32(code, cst.Name(tile)):
        raise IllegalSite(f"{tile} does not show its shape, or that it is float32")
    check_fixed(code, [shape], tile, reader)
    return code.module.code_for_node(shape), code.module.code_for_node(dtype)


def _whole(code: KernelCode, tile: str, reader: Statement) -> list[cst.Name]:
    operands = [code.argument(reader, keyword) for keyword in OPERANDS]
    return [operand for operand in operands if isinstance(operand, cst.Name) and operand.value == tile]


def _rewritten(code: KernelCode, tile: str, reader: Statement, made_of: tuple[str, str]) -> cst.Module:
    shape, dtype = made_of
    assert reader.call is not None and isinstance(reader.call.func, cst.Attribute)
    isa, language = code.module.code_for_node(reader.call.func.value), code.name_of_module("nki.language")
    copy = code.fresh_name(f"{tile}_out")
    lines = [
        f"{copy} = {language}.ndarray({shape}, dtype={dtype}, buffer={language}.sbuf)",
        f"{isa}.tensor_copy(dst={copy}, src={tile}, engine={isa}.engine.scalar)",
    ]
    changed = replace_nodes(reader.node, {node: cst.Name(copy) for node in _whole(code, tile, reader)})
    return instead_of(code, reader, lines, then=changed)
