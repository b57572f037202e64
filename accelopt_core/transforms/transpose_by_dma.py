"""Turn a tile while it is loaded, instead of on the Tensor engine afterwards.

dma_copy(dst=tile, src=x[...])
nc_transpose(dst=turned, data=tile)         ->       dma_transpose(dst=tile_t, src=x[...])
tensor_copy(dst=tile_t, src=turned)

Whether the DMA engines turn it faster than the Tensor engine does depends on dtype and shape: the price decides.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import IllegalSite, NotOfItsKind, Site
from accelopt_core.transforms.kernel_code import KernelCode, Statement
from accelopt_core.transforms.one_instruction import InstructionTransform, written_by
from accelopt_core.transforms.private_tile import PrivateTile, check_unchanged, private_tile, without
from accelopt_core.transforms.syntax import parsed_expression

_Turned = tuple[PrivateTile, PrivateTile, cst.Call]
"""The loaded tile, the turned one in PSUM, and the transfer instead."""


class TransposeByDma(InstructionTransform[_Turned]):
    name = "transpose-by-dma"
    addresses = frozenset({Cause.TRANSPOSES, Cause.ELEMENTWISE, Cause.MATMUL, Cause.WAITING})
    gone = "loads no tile"

    def describe(self) -> str:
        return "Turn a tile while it is loaded (dma_transpose) instead of on the Tensor engine afterwards."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        return written_by(code, "dma_copy")

    def check(self, code: KernelCode, key: str, instruction: Statement) -> _Turned:
        return _plan(code, instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: _Turned) -> Site:
        _, turned, _ = found
        return Site(
            self.name,
            key,
            f"turn {key} as it is loaded",
            instruction.line,
            f"nothing else reads {key} or {turned.name}, and all three tiles have one dtype",
            "the Tensor engine has one transpose less, and no copy out of PSUM is needed",
        )

    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: _Turned) -> cst.Module:
        loaded, turned, call = found
        assert turned.reader.call is not None
        gone = [loaded.allocation, loaded.writer, turned.allocation, turned.writer]
        return without(code, instruction.block, gone, {turned.reader.call: call})


def _plan(code: KernelCode, load: Statement) -> _Turned:
    """Raises IllegalSite."""
    turns = [s for s in code.statements() if s.operation == "nc_transpose"]
    if not any(code.changed_by(load) & code.roots_of(transpose.uses) for transpose in turns):
        raise NotOfItsKind(f"what line {load.line} loads is not turned by an nc_transpose")
    loaded = private_tile(code, load)
    transpose = loaded.reader
    if transpose.operation != "nc_transpose" or not _only(transpose, "dst", "data"):
        raise IllegalSite(f"{loaded.name} is not turned as it is by an nc_transpose")
    turned = private_tile(code, transpose)
    copy = turned.reader
    if copy.operation != "tensor_copy" or not (_only(copy, "dst", "src") or _only(copy, "dst", "src", "engine")):
        raise IllegalSite(f"{turned.name} is not just copied")
    for reader, keyword, tile in ((transpose, "data", loaded), (copy, "src", turned)):
        value = code.argument(reader, keyword)
        if not isinstance(value, cst.Name) or value.value != tile.name:
            raise IllegalSite(f"line {reader.line} takes a part of {tile.name}")
    if not _only(load, "dst", "src"):
        raise IllegalSite(f"the load on line {load.line} says more than from where to where")
    source, dst = code.argument(load, "src"), code.argument(copy, "dst")
    assert source is not None and dst is not None
    if not code.regions_of(source) or not code.regions_of(source) <= {"hbm", "shared_hbm", "private_hbm"}:
        raise IllegalSite(f"line {load.line} does not load from HBM")
    if code.regions_of(dst) != {"sbuf"}:
        raise IllegalSite(f"line {copy.line} does not copy into SBUF")
    target = code.allocations_of(dst)
    dtypes = {_dtype(code, s) for s in (loaded.allocation, turned.allocation, *target)}
    if len(dtypes) != 1 or "" in dtypes:
        raise IllegalSite(f"{loaded.name}, {turned.name} and what {turned.name} is copied to have different dtypes")
    check_unchanged(code, [source], PrivateTile(loaded.name, loaded.allocation, load, copy))
    assert load.call is not None
    if not isinstance(load.call.func, cst.Attribute):
        raise IllegalSite(f"line {load.line}: the name of nki.isa is not at hand")
    text = code.module.code_for_node
    call = parsed_expression(f"{text(load.call.func.value)}.dma_transpose(dst={text(dst)}, src={text(source)})")
    assert isinstance(call, cst.Call)
    return loaded, turned, call


def _only(statement: Statement, *keywords: str) -> bool:
    assert statement.call is not None
    given = {arg.keyword.value for arg in statement.call.args if arg.keyword is not None}
    return given == set(keywords) and len(statement.call.args) == len(keywords)


def _dtype(code: KernelCode, allocation: Statement) -> str:
    value = code.argument(allocation, "dtype", 1)
    return code.module.code_for_node(value) if value is not None else ""
