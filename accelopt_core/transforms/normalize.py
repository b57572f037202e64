"""A kernel in a form that other transforms understand, and that means the same.

Functions of the file are written out where they are called, loops count up from 0, every name is bound once, every
tile is made where it is used and for one purpose. By itself this gains little or nothing: it is a first step, taken
when a transform that follows it gains.
"""

from __future__ import annotations

import libcst as cst

from accelopt_core.evaluation import Cause
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, KernelModule, Site
from accelopt_core.transforms.kernel_code import KernelCode, find_kernel, read_kernel
from accelopt_core.transforms.normalize_calls import with_calls_written_out
from accelopt_core.transforms.normalize_instructions import with_instructions_spelled_alike
from accelopt_core.transforms.normalize_names import with_names_bound_once
from accelopt_core.transforms.normalize_spellings import in_one_spelling
from accelopt_core.transforms.normalize_tiles import with_tiles_made_where_used

KEY = "kernel"
_MOST_PASSES = 8


class Normalize:
    name = "normalize"
    addresses: frozenset[Cause] = frozenset()

    def describe(self) -> str:
        return (
            "Write the kernel in the form that the other tools understand: helpers written out, names bound once, "
            "tiles made where they are used."
        )

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        made = normalized(module)
        if made.tree.code == module.tree.code:
            return ()
        return (
            Site(
                self.name,
                KEY,
                "write the kernel in normal form",
                read_kernel(module).line_of(read_kernel(module).function),
                "names, places of allocations and calls change, and no instruction",
                "other changes become possible",
            ),
        )

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        made = normalized(module)
        if made.tree.code == module.tree.code:
            raise IllegalSite("the kernel is in normal form")
        return made.tree


NORMALIZE = Normalize()


def normalized(module: KernelModule) -> KernelModule:
    """The same kernel in normal form; normalizing that again changes nothing. Raises NotAKernel."""
    for _ in range(_MOST_PASSES):
        made = _once(module)
        if made.tree.code == module.tree.code:
            return module
        module = made
    return module


def _once(module: KernelModule) -> KernelModule:
    def again(tree: cst.Module) -> KernelModule:
        return KernelModule(tree, module.entry_points)

    def of(function: cst.FunctionDef, written: cst.FunctionDef, tree: cst.Module) -> KernelModule:
        if written is function:
            return again(tree)
        result = tree.deep_replace(function, written)
        assert isinstance(result, cst.Module)
        return again(cst.parse_module(result.code))

    function = find_kernel(module.tree, module.entry_points)
    module = of(function, with_calls_written_out(module.tree, function), module.tree)
    module = again(in_one_spelling(KernelCode(module)))
    code = KernelCode(module)
    module = of(code.function, with_names_bound_once(code.function, code.all_names), code.module)
    module = again(with_tiles_made_where_used(KernelCode(module)))
    return again(with_instructions_spelled_alike(KernelCode(module)))
