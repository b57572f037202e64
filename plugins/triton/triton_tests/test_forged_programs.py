"""Launch programs that no trace writes: a candidate's process may leave any bytes, and each forgery is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelopt_core.toolchain import CompileError, TensorArgument
from nki_optimizer_triton.compiling.compiler import KernelCompiler
from nki_optimizer_triton.program.launch_program import (
    Buffer,
    ConstexprValue,
    DescriptorValue,
    DtypeValue,
    Fill,
    FunctionValue,
    Launch,
    LaunchProgram,
    ModuleValue,
    Options,
    TensorValue,
    Tunable,
    TupleValue,
)
from nki_optimizer_triton.program.program_file import MOST_BYTES, ProgramDamaged, loads
from nki_optimizer_triton.program.writing import MAGIC, dumps
from nki_optimizer_triton.toolchain import TritonToolchain
from triton_tests.wrappers import HONEST, wrapper

X = TensorArgument((4, 8), "float32")
WHOLE = TensorValue(1, "float32", 0, (4, 8), (8, 1))
KERNEL = FunctionValue(0, "k")
PROGRAM = LaunchProgram(
    1,
    ((4, 8),),
    (Buffer("float32", 32, 0), Buffer("float32", 32, 5), Buffer("int64", 4, 6)),
    (
        Fill(TensorValue(2, "int64", 1, (2,), (1,)), -7, 6),
        Launch(
            KERNEL,
            (4, 1, 1),
            (
                ("x", TensorValue(0, "float32", 0, (4, 8), (8, 1))),
                ("y", WHOLE),
                ("n", 32),
                ("s", float("-inf")),
                ("flag", True),
                ("name", "relu"),
                ("none", None),
                ("kind", DtypeValue("float16")),
                ("f", FunctionValue(0, "g")),
                ("pair", TupleValue((1, TupleValue((2.5, "a"))))),
                ("d", DescriptorValue(WHOLE, (4, 8), "nan")),
            ),
            Options(4, 3, 1, 64),
            7,
            0,
        ),
    ),
    (WHOLE,),
    ((KERNEL, (("tl", ModuleValue("triton.language")), ("C", ConstexprValue(3)))), (FunctionValue(0, "g"), ())),
    (Tunable(KERNEL, ((("BLOCK", 64), ("num_warps", 4)),)),),
)


def read(data: bytes) -> LaunchProgram:
    return loads(data, (X,), 1 << 20)


def test_an_honest_program_comes_back_as_it_was() -> None:
    assert read(dumps(PROGRAM)) == PROGRAM
    assert dumps(read(dumps(PROGRAM))) == dumps(PROGRAM)


def forged(change: Callable[[dict[str, Any]], object]) -> bytes:
    data = json.loads(dumps(PROGRAM)[len(MAGIC) :])
    change(data)
    return MAGIC + json.dumps(data).encode()


def at(*path: Any, value: Any) -> Callable[[dict[str, Any]], object]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    return change


def launch(place: int, value: Any) -> Callable[[dict[str, Any]], object]:
    return at("steps", 1, place, value=value)


def argument(value: Any) -> Callable[[dict[str, Any]], object]:
    return at("steps", 1, 3, 0, 1, value=value)


def nested(depth: int) -> list[Any]:
    value: list[Any] = ["int", 1]
    for _ in range(depth):
        value = ["tuple", [value]]
    return value


def tensor(buffer: Any = 1, dtype: Any = "float32", offset: Any = 0, shape: Any = (4, 8), strides: Any = (8, 1)) -> Any:
    return ["tensor", buffer, dtype, offset, list(shape), list(strides)]


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    # --- the whole ---
    "another field": (at("more", value=1), "other fields"),
    "a missing field": (lambda d: d.pop("outputs"), "other fields"),
    "a field of another type": (at("steps", value={}), "steps is no list"),
    "five thousand buffers": (at("buffers", value=[["float32", 1, 0]] * 5000), "5,000 buffers, more than 4,096"),
    "five thousand steps": (at("steps", value=[1] * 5000), "5,000 steps, more than"),
    "no output": (at("outputs", value=[]), "it returns no tensor"),
    "a hundred outputs": (at("outputs", value=[tensor()] * 100), "100 outputs, more than 64"),
    # --- buffers ---
    "a buffer of an unknown type": (at("buffers", 1, 0, value="float128"), "element type 'float128'"),
    "a buffer of objects": (at("buffers", 1, 0, value=["float32"]), "unexpected value"),
    "a negative buffer": (at("buffers", 1, 1, value=-1), "elements of a buffer: -1"),
    "a giant buffer": (at("buffers", 1, 1, value=1 << 39), "its tensors need 2,097,152 MiB"),
    "a buffer beyond counting": (at("buffers", 1, 1, value=10**30), "elements of a buffer"),
    "a buffer of a fraction": (at("buffers", 1, 1, value=1.5), "no JSON: 1.5"),
    "a buffer of true": (at("buffers", 1, 1, value=True), "unexpected value"),
    "other arguments": (at("argument_shapes", 0, value=[8, 4]), "not those that it was traced with"),
    "an argument of another type": (at("buffers", 0, 0, value="int32"), "not those that it was traced with"),
    "a larger argument": (at("buffers", 0, 1, value=64), "not those that it was traced with"),
    "two arguments": (at("arguments", value=2), "traced with 2 tensors, not 1"),
    "no arguments": (at("arguments", value="1"), "traced with 1 tensors, not 1"),
    # --- views ---
    "a view of no buffer": (argument(tensor(buffer=9)), "number of a buffer: 9"),
    "a view of a negative buffer": (argument(tensor(buffer=-1)), "number of a buffer: -1"),
    "a view beyond its buffer": (argument(tensor(offset=1)), "reaches 132 bytes into a buffer of 128"),
    "a view beyond by strides": (argument(tensor(strides=(9, 1))), "reaches 140 bytes"),
    "a view beyond by its type": (argument(tensor(dtype="float64")), "reaches 256 bytes"),
    "a view with a negative stride": (argument(tensor(strides=(-8, 1))), "strides: -8"),
    "a view with a negative size": (argument(tensor(shape=(-4, 8))), "shape: -4"),
    "a view with a negative offset": (argument(tensor(offset=-8)), "offset: -8"),
    "a view of other axes": (argument(tensor(shape=(4,))), "other strides than axes"),
    "a view of twenty axes": (argument(tensor(shape=[1] * 20, strides=[1] * 20)), "at most 16 whole numbers"),
    "a view of an unknown type": (argument(tensor(dtype="object")), "element type 'object'"),
    "an output of a part of an argument": (at("outputs", 0, value=tensor(0, shape=(3, 8))), "a part of an argument"),
    "an output of an argument as bits": (at("outputs", 0, value=tensor(0, "int32")), "an argument as something else"),
    # --- launches ---
    "another kind of step": (launch(0, "system"), "a step of the kind 'system'"),
    "a grid beyond CUDA's": (launch(2, [1, 1, 65_536]), "65536 is not from 0 to 65,535"),
    "a grid beyond counting": (launch(2, [2**31, 1, 1]), "is not from 0 to 2,147,483,647"),
    "a negative grid": (launch(2, [1, -1, 1]), "blocks of a grid: -1"),
    "a grid of two": (launch(2, [1, 1]), "grid: expected 3 fields"),
    "three hundred arguments": (launch(3, [[f"a{n}", ["int", n]] for n in range(300)]), "300 arguments of a launch"),
    "two arguments of one name": (launch(3, [["a", ["int", 1]], ["a", ["int", 2]]]), "have one name"),
    "a name that is none": (launch(3, [["a b", ["int", 1]]]), "a name that is none: 'a b'"),
    "a line of another world": (launch(5, -1), "line: -1"),
    "64 warps": (launch(4, [64, 3, 1, None]), "num_warps: 64"),
    "three warps": (launch(4, [3, 3, 1, None]), "num_warps=3 is no power of 2"),
    "a thousand stages": (launch(4, [4, 1000, 1, None]), "num_stages: 1000"),
    "warps in words": (launch(4, ["4", 3, 1, None]), "launch options: unexpected value '4'"),
    "more registers than there are": (launch(4, [4, 3, 1, 4096]), "maxnreg: 4096"),
    # --- values ---
    "a value of no kind": (argument(["pickle", "abc"]), "a value of the kind 'pickle'"),
    "a value that is no list": (argument("float32"), "unexpected value 'float32'"),
    "an empty value": (argument([]), "a value that is none"),
    "an integer of hundreds of bits": (argument(["int", 1 << 200]), "integer: "),
    "an integer of a thousand digits": (argument(["int", 10**1000]), "integer: "),
    "a float that is none": (argument(["float", "0x1p5; import os"]), "invalid hexadecimal"),
    "a float of many digits": (argument(["float", "1" * 100]), "a float of many digits"),
    "a float as a number": (argument(["float", 1.5]), "no JSON: 1.5"),
    "a text of a megabyte": (argument(["str", "a" * (1 << 20)]), "too long or not printable"),
    "a text with control characters": (argument(["str", "a\x1b[2J"]), "too long or not printable"),
    "a type that is none": (argument(["dtype", "__class__"]), "element type '__class__'"),
    "a function with another name": (argument(["function", 0, "a.b"]), "a function's name that is none"),
    "a function of another file": (argument(["function", 1, "g"]), "number of a file: 1"),
    "a module of Python's": (argument(["module", "os"]), "'os' is nothing that kernels may name"),
    "a module of Triton's": (argument(["module", "triton.runtime"]), "nothing that kernels may name"),
    "a private module": (argument(["module", "triton.language._utils"]), "nothing that kernels may name"),
    "a module by its dots": (argument(["module", "triton.language..os"]), "nothing that kernels may name"),
    "a deep tuple": (argument(nested(10)), "one inside too many others"),
    "a bottomless tuple": (argument(nested(200)), "one inside too many others|takes more than there is"),
    "a wide tuple": (argument(["tuple", [["int", 1]] * 100]), "a tuple of 100, more than 64"),
    "a descriptor with another last stride": (
        argument(["descriptor", tensor(shape=(4, 4), strides=(8, 2)), [4, 4], "zero"]), "whose last stride is not 1"),
    "a descriptor with another block": (argument(["descriptor", tensor(), [4], "zero"]), "another block than axes"),
    "a descriptor with another padding": (argument(["descriptor", tensor(), [4, 8], "one"]), "padding 'one'"),
    # --- fills, functions ---
    "a fill of strided elements": (at("steps", 0, 1, value=tensor(shape=(4, 4))), "do not lie side by side"),
    "a fill with a text": (at("steps", 0, 2, value=["str", "a"]), "a fill with what is no number"),
    "a thousand functions": (at("functions", value=[[["function", 0, "k"], []]] * 1000), "1,000 functions"),
    "a function that is a number": (at("functions", 0, 0, value=["int", 1]), "where a function should stand"),
    "two thousand globals": (
        at("functions", 0, 1, value=[[f"g{n}", ["int", n]] for n in range(2000)]), "2,000 globals"),
    "two thousand configurations": (at("tunables", 0, 1, value=[[]] * 2000), "configurations of a kernel"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_refused(name: str) -> None:
    change, why = FORGERIES[name]
    with pytest.raises(ProgramDamaged) as refused:
        read(forged(change))
    assert any(each in str(refused.value) for each in why.split("|")), str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "its first 8 bytes"),
        (b"PICKLE\n\n{}", "its first 8 bytes"),
        (MAGIC, "no JSON"),
        (MAGIC + b"\xff\xfe", "no JSON|UnicodeDecodeError"),
        (MAGIC + b"[" * 100_000, "no JSON|takes more"),
        (MAGIC + b"null", "other fields"),
        (MAGIC + b'{"a": NaN}', "no JSON: NaN"),
        (MAGIC + b'{"a": 1e999}', "no JSON: 1e999"),
        (MAGIC + b" " * MOST_BYTES, "more than"),
    ],
)
def test_bytes_that_are_no_program_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(ProgramDamaged) as refused:
        read(data)
    assert any(each in str(refused.value) for each in why.split("|")), str(refused.value)


def test_a_truncated_program_is_refused_wherever_it_ends() -> None:
    whole = dumps(PROGRAM)
    for end in range(len(whole)):
        with pytest.raises(ProgramDamaged):
            read(whole[:end])


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["tensor", "tuple", "int", "float32"]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_junk_anywhere_is_refused_or_still_a_program(data: st.DataObject) -> None:
    """Nothing but ProgramDamaged comes of it, and what is let through keeps every bound."""
    forgery = copy.deepcopy(json.loads(dumps(PROGRAM)[len(MAGIC) :]))
    place: Any = forgery
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (list, dict)) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(JUNK)
            break
        place = place[key]
    try:
        program = read(MAGIC + json.dumps(forgery).encode())
    except ProgramDamaged:
        return
    assert sum(buffer.nbytes for buffer in program.buffers) <= 1 << 20
    assert read(dumps(program)) == program


# --- by way of the whole toolchain --------------------------------------------------------------------

FORGER = """
import json, os
def leave(change):
    for fd in range(3, 64):
        try:
            os.lseek(fd, 0, 0)
        except OSError:
            continue
        os.write(fd, b"TRITON1\\n" + json.dumps(change).encode())
    os._exit(0)
"""


def test_a_forger_gains_nothing_by_another_program(on_cpu: TritonToolchain) -> None:
    """A program is forged in the candidate's process: its kernels are still those of the text, checked and compiled."""
    with pytest.raises(CompileError, match="the traced program is refused: it"):
        on_cpu.compile(wrapper("leave({'steps': []})\nreturn x", FORGER), (X,), 60)


def test_a_launch_of_what_the_text_does_not_have_is_refused(on_cpu: TritonToolchain) -> None:
    compiler: KernelCompiler = on_cpu._compiler
    honest = on_cpu._tracer.trace(HONEST, (X,), 60)
    (launched,) = honest.launches

    def with_launch(function: FunctionValue, *arguments: tuple[str, Any]) -> LaunchProgram:
        step = Launch(function, (1, 1, 1), arguments or launched.arguments, Options(), 1)
        functions = ((function, honest.functions[0][1]),)
        return LaunchProgram(1, honest.argument_shapes, honest.buffers, (step,), honest.outputs, functions)

    for program, why in (
        (with_launch(FunctionValue(0, "run")), "run is no kernel: decorate it"),
        (with_launch(FunctionValue(0, "absent")), "defines no kernel absent"),
        (with_launch(launched.function, ("x_ptr", 1)), "launched with other parameters than it has"),
        (LaunchProgram(1, ((4, 8),), honest.buffers, (launched,), honest.outputs, ()), "not among what was traced"),
    ):
        with pytest.raises(CompileError, match=why):
            compiler.compile(program, [HONEST], 60)
