"""Load a tile as it lies in HBM and turn it on the Tensor engine, instead of while it is loaded.

                                                   tile_rows = ndarray((128, K))
dma_transpose(dst=tile, src=x[...])       ->       dma_copy(dst=tile_rows, src=x[...])
                                                   tile_turned = ndarray((K, 128), buffer=psum)
                                                   nc_transpose(dst=tile_turned, data=tile_rows)
                                                   tensor_copy(dst=tile, src=tile_turned)

The way back from `transpose-by-dma`: a transfer that turns moves fewer bytes a second, of 4-byte elements above
all, and a Tensor engine that waits for it may as well turn the tile itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import IllegalSite, Site
from accelopt_core.transforms.kernel_code import KernelCode, Statement
from accelopt_core.transforms.one_instruction import (
    InstructionTransform,
    counted,
    instead_of,
    parts_written,
    written_by,
)
from accelopt_core.transforms.plain_names import check_fixed, made_once

_HBM = frozenset({"hbm", "shared_hbm", "private_hbm"})


class TransposeByPe(InstructionTransform[tuple[str, str, str]]):
    name = "transpose-by-pe"
    addresses = frozenset({Cause.DMA_BANDWIDTH, Cause.WAITING})
    gone = "turns no tile while loading it,"

    def describe(self) -> str:
        return "Load a tile as it lies in HBM and turn it on the Tensor engine (nc_transpose), not by dma_transpose."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        return counted(written_by(code, "dma_transpose"))

    def passed_over(self, code: KernelCode) -> Iterator[tuple[str, Statement, str]]:
        return parts_written(code, "dma_transpose")

    def check(self, code: KernelCode, key: str, instruction: Statement) -> tuple[str, str, str]:
        return _check(code, instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: tuple[str, str, str]) -> Site:
        return Site(
            self.name,
            key,
            f"turn {key} on the Tensor engine after loading it",
            instruction.line,
            f"both ways move the bits of {key} to the same places, and its dtype stays as it is",
            "a plain transfer has the whole bandwidth of the DMA engines, a turning one only part of it",
        )

    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: tuple[str, str, str]) -> cst.Module:
        return _rewritten(code, instruction, found)


def _check(code: KernelCode, load: Statement) -> tuple[str, str, str]:
    """Rows, columns and dtype of the turned tile, as text. Raises IllegalSite."""
    where = f"line {load.line}"
    assert load.call is not None
    if sorted(arg.keyword.value if arg.keyword else "" for arg in load.call.args) != ["dst", "src"]:
        raise IllegalSite(f"{where} says more than from where to where, or not by name")
    if not isinstance(load.call.func, cst.Attribute) or not code.name_of_module("nki.language"):
        raise IllegalSite(f"{where}: the name of nki.isa or nki.language is not at hand")
    tile, source = code.argument(load, "dst"), code.argument(load, "src")
    assert isinstance(tile, cst.Name) and source is not None
    regions = code.regions_of(source)
    if not regions or not regions <= _HBM:
        raise IllegalSite(f"{where} does not load from HBM")
    allocation = made_once(code, tile.value)
    if allocation.region != "sbuf":
        raise IllegalSite(f"{tile.value} is not in SBUF")
    shape, dtype = code.argument(allocation, "shape", 0), code.argument(allocation, "dtype", 1)
    if not isinstance(shape, cst.Tuple) or len(shape.elements) != 2 or dtype is None:
        raise IllegalSite(f"{tile.value} does not show two dimensions and a dtype")
    check_fixed(code, [shape, dtype], tile.value, load)
    text = code.module.code_for_node
    rows, columns = (text(element.value) for element in shape.elements)
    return rows, columns, text(dtype)


def _rewritten(code: KernelCode, load: Statement, made_of: tuple[str, str, str]) -> cst.Module:
    rows, columns, dtype = made_of
    assert load.call is not None and isinstance(load.call.func, cst.Attribute)
    tile, source = code.argument(load, "dst"), code.argument(load, "src")
    assert isinstance(tile, cst.Name) and source is not None
    text = code.module.code_for_node
    isa, language = text(load.call.func.value), code.name_of_module("nki.language")
    loaded = code.fresh_name(f"{tile.value}_rows")
    turned = code.fresh_name(f"{tile.value}_turned")
    lines = [
        f"{loaded} = {language}.ndarray(({columns}, {rows}), dtype={dtype}, buffer={language}.sbuf)",
        f"{isa}.dma_copy(dst={loaded}, src={text(source)})",
        f"{turned} = {language}.ndarray(({rows}, {columns}), dtype={dtype}, buffer={language}.psum)",
        f"{isa}.nc_transpose(dst={turned}, data={loaded})",
        f"{isa}.tensor_copy(dst={tile.value}, src={turned})",
    ]
    return instead_of(code, load, lines)
