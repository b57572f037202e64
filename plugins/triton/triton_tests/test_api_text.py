"""What models are taught of `triton.language` is there in the Triton that is installed: names, arguments, defaults."""

from __future__ import annotations

import ast
import inspect

import pytest
import triton.language as tl

from nki_optimizer_triton.language.api import OPERATIONS, api_reference, instruction_list

CALLED_AS_PYTHONS = {"range": {"start": "arg1", "end": "arg2"}, "static_range": {"start": "arg1", "end": "arg2"}}
"""By position: Triton numbers these arguments as the built-in `range` takes them."""


def complaints(name: str, given: str) -> list[str]:
    """What of an operation's line is not so."""
    operation = getattr(tl, name, None)
    if operation is None:
        return [f"tl.{name} is not there"]
    theirs = inspect.signature(getattr(operation, "fn", operation)).parameters
    arguments = ast.parse(f"def f({given}): pass").body[0].args  # type: ignore[attr-defined]
    renamed = CALLED_AS_PYTHONS.get(name, {})
    names = [renamed.get(each.arg, each.arg) for each in arguments.args]
    found = [f"tl.{name} has no argument {each}" for each in names if each not in theirs]
    if not found and [each for each in theirs if each in names] != names:
        found.append(f"the arguments of tl.{name} come in another order")
    for each, default in zip(reversed(names), reversed(arguments.defaults)):
        if each in theirs and theirs[each].default != ast.literal_eval(default):
            found.append(f"{each} of tl.{name} is {theirs[each].default!r} where nothing is said")
    return found


@pytest.mark.parametrize(("name", "given"), [(name, given) for name, given, _ in OPERATIONS])
def test_an_operation_is_as_it_is_told(name: str, given: str) -> None:
    assert complaints(name, given) == []


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("tensor_plus", "x", "tl.tensor_plus is not there"),
        ("load", "pointer, masked=None", "tl.load has no argument masked"),
        ("store", "value, pointer", "come in another order"),
        ("max", "input, axis=0", "axis of tl.max is None where nothing is said"),
    ],
)
def test_what_is_not_so_is_found(name: str, given: str, said: str) -> None:
    assert said in " ".join(complaints(name, given))


def test_both_texts_have_every_operation_once() -> None:
    names = [name for name, _, _ in OPERATIONS]
    assert len(set(names)) == len(names)
    assert all(f"tl.{name}(" in api_reference() and name in instruction_list() for name in names)
