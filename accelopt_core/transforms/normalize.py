"""A kernel in a form that other transforms understand, and that means the same.

Functions of the file are written out where they are called, loops count up from 0, every name is bound once, every
tile is made where it is used and for one purpose. A second form, which asserts that every tile is a whole one, has no
bounds that cut the last one off; a third, which asserts it too, has branches as they are taken at the task's shapes. By
itself none gains much: it is a first step, taken when a transform that follows it gains.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, KernelModule, Site, SiteGone
from accelopt_core.transforms.kernel_code import KernelCode, find_kernel, read_kernel
from accelopt_core.transforms.normalize_bounds import with_sizes_simplified, with_whole_tiles
from accelopt_core.transforms.normalize_branches import with_decided_branches
from accelopt_core.transforms.normalize_calls import with_calls_written_out
from accelopt_core.transforms.normalize_dtypes import dtypes_to_state, with_dtypes_stated
from accelopt_core.transforms.normalize_instructions import with_instructions_spelled_alike
from accelopt_core.transforms.normalize_language import with_language_as_instructions
from accelopt_core.transforms.normalize_names import with_names_bound_once
from accelopt_core.transforms.normalize_patterns import with_patterns_as_slices
from accelopt_core.transforms.normalize_spellings import in_one_spelling
from accelopt_core.transforms.normalize_taken import as_taken, read_taken, taken_at
from accelopt_core.transforms.normalize_tiles import with_tiles_made_where_used
from accelopt_core.transforms.normalize_views import with_views_written_out

KEY, WHOLE = "kernel", "whole"
_MOST_PASSES = 8


class Normalize:
    name = "normalize"
    addresses = frozenset({Cause.WAITING, Cause.THROTTLED})

    def describe(self) -> str:
        return (
            "Write the kernel in the form that the other tools understand: helpers written out, names bound once, "
            "tiles made where they are used."
        )

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        dtypes = dtypes_to_state(code, context.dtypes)
        plain = _stated_and_normalized(module, tuple(dtypes.items()))
        whole = with_every_tile_whole(plain)
        taken = taken_at(plain, context.arguments, _normalized)
        stated = [f"{name}={dtype}" for name, dtype in dtypes.items()]
        forms = []
        if plain.text != module.text:
            forms.append(([KEY], "write the kernel in normal form", ""))
        if whole is not plain and whole.text != module.text:
            asserts = "it asserts that every tile is whole; "
            forms.append(([KEY, WHOLE], "write the kernel in normal form, for whole tiles only", asserts))
        if taken is not None and _taken(plain, taken.words).text not in (module.text, plain.text, whole.text):
            asserts = "it asserts how each branch is taken; "
            what = "write the kernel in normal form, with branches as they are taken at the shapes of the task"
            forms.append(([KEY, *taken.words], what, asserts))
        return tuple(
            Site(
                self.name,
                " ".join([*words, *stated]),
                what,
                code.line_of(code.function),
                f"{asserts}names, places of allocations and calls change, and no instruction",
                "other changes become possible",
            )
            for words, what, asserts in forms
        )

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        kernel, *words = key.split(" ")
        whole = words[:1] == [WHOLE]
        form = [word for word in words if ":" in word]
        dtypes = dict(map(_pair, words[whole + len(form) :]))
        try:
            read_taken(form)
        except (ValueError, KeyError):
            kernel = ""
        named = all(name.isidentifier() and dtype.isidentifier() for name, dtype in dtypes.items())
        if kernel != KEY or not named or words[whole : whole + len(form)] != form or (whole and form):
            raise SiteGone(f"{key}: the normal form's site is {KEY}, with what its arguments are: {KEY} x=float32")
        made = _stated_and_normalized(module, tuple(dtypes.items()))
        if whole:
            plain, made = made, with_every_tile_whole(made)
            if made is plain:
                raise IllegalSite("no bound cuts a tile off")
        if form:
            made = _taken(made, tuple(form))
        if made.text == module.text:
            raise IllegalSite("the kernel is in normal form")
        return made.tree


NORMALIZE = Normalize()


def _pair(text: str) -> tuple[str, str]:
    name, _, dtype = text.partition("=")
    return name, dtype


def normalized(module: KernelModule, dtypes: Mapping[str, str] = MappingProxyType({})) -> KernelModule:
    """The same kernel in normal form, with the dtypes of these arguments stated. Raises NotAKernel.

    Normalizing that again changes nothing.
    """
    return _stated_and_normalized(module, tuple(dtypes.items()))


# A form is asked for when it is offered, when it is carried out, and as what others begin with; modules never change.


@lru_cache(maxsize=8)
def _stated_and_normalized(module: KernelModule, dtypes: tuple[tuple[str, str], ...]) -> KernelModule:
    if dtypes:
        return _normalized(module.changed(with_dtypes_stated(KernelCode(module), dict(dtypes))))
    return _normalized(module)


@lru_cache(maxsize=8)
def _normalized(module: KernelModule) -> KernelModule:
    for _ in range(_MOST_PASSES):
        made = _once(module)
        if made.text == module.text:
            return module
        module = made
    return module


@lru_cache(maxsize=8)
def _taken(plain: KernelModule, words: tuple[str, ...]) -> KernelModule:
    return as_taken(plain, read_taken(words), _normalized)


@lru_cache(maxsize=8)
def with_every_tile_whole(module: KernelModule) -> KernelModule:
    """Of a kernel in normal form: in it again, without bounds that cut the last tile off. Raises NotAKernel."""
    code = read_kernel(module)
    made = with_whole_tiles(code)
    if made is code.module:
        return module
    made = with_sizes_simplified(KernelCode(module.changed(made)))
    return normalized(module.changed(made))


def _once(module: KernelModule) -> KernelModule:
    function = find_kernel(module.tree, module.entry_points)
    written = with_calls_written_out(module, function)
    if written is not module.tree:
        module = module.changed(written)
    steps = (
        with_decided_branches,
        in_one_spelling,
        _with_names_bound_once,
        with_language_as_instructions,
        with_views_written_out,
        with_patterns_as_slices,
        with_tiles_made_where_used,
        with_instructions_spelled_alike,
    )
    for step in steps:
        code = read_kernel(module)
        made = step(code)
        if made is not code.module:
            module = module.changed(made)
    return module


def _with_names_bound_once(code: KernelCode) -> cst.Module:
    written = with_names_bound_once(code.function, code.all_names)
    return code.module if written is code.function else _with_function(code.module, code.function, written)


def _with_function(tree: cst.Module, function: cst.FunctionDef, written: cst.FunctionDef) -> cst.Module:
    result = tree.deep_replace(function, written)
    assert isinstance(result, cst.Module)
    return result
