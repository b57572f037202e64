"""TTIR that no kernel may be compiled to: operations that are on no list, and text that is no module."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_optimizer_triton.ir import reading
from nki_optimizer_triton.ir.reading import MOST_CHARACTERS, read_module
from nki_optimizer_triton.ir.types import IrError, Scalar, Tensor, operations_in

KERNEL = """#loc = loc("/tmp/work/kernels_0.py":3:0)
module {
  tt.func public @k(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("x"(#loc)), %n: i32) attributes {a = false} {
    %c0 = arith.constant 0 : i32 loc(#loc1)
    %i = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32> loc(#loc2)
    %p = tt.splat %x : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>> loc(#loc2)
    %q = tt.addptr %p, %i : tensor<8x!tt.ptr<f32>>, tensor<8xi32> loc(#loc3)
    %v = tt.load %q : tensor<8x!tt.ptr<f32>> loc(#loc3)
    HERE
    tt.store %q, %v : tensor<8x!tt.ptr<f32>> loc(#loc3)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc1 = loc("/tmp/work/kernels_0.py":5:4)
#loc2 = loc(callsite(#loc4 at #loc5))
#loc3 = loc("v"(#loc6))
#loc4 = loc("/usr/lib/triton/language/standard.py":50:4)
#loc5 = loc("/tmp/work/kernels_0.py":6:4)
#loc6 = loc("/tmp/work/kernels_0.py":7:4)
"""


def with_line(line: str) -> str:
    return KERNEL.replace("HERE", line)


def test_an_honest_module_is_read_with_its_lines() -> None:
    kernel = read_module(with_line(""), "kernels_0.py").kernel
    assert kernel.name == "k" and [name for name, _ in kernel.arguments] == ["x", "n"]
    operations = operations_in(kernel.body)
    assert [(op.name, op.line) for op in operations] == [
        ("arith.constant", 5), ("tt.make_range", 6), ("tt.splat", 6), ("tt.addptr", 7), ("tt.load", 7), ("tt.store", 7),
        ("tt.return", 3),
    ]  # fmt: skip
    assert operations[4].result_types == (Tensor((8,), "f32"),)
    assert kernel.arguments[1][1] == Scalar("i32")


REFUSED = {
    "inline assembly": (
        '%a = tt.elementwise_inline_asm "mov.u32 $0, %clock;" {constraints = "=r", pure = true} '
        ": i32 loc(#loc3)", "inline assembly (tl.inline_asm_elementwise)", 7,
    ),
    "printing": ('tt.print " x: " {hex = false} : %v : tensor<8xf32> loc(#loc3)', "printing", 7),
    "an assertion": ('tt.assert %v, "no" : tensor<8xf32> loc(#loc3)', "device assertions", 7),
    "an unknown operation": ("%a = llvm.inline_asm %v : i32 loc(#loc3)", "the operation llvm.inline_asm", 7),
    "an operation of the GPU's": ("%a = nvvm.read.ptx.sreg.clock : i32 loc(#loc3)", "the operation nvvm.read.ptx", 7),
    "an outside function": (
        '%a = tt.extern_elementwise %v {libname = "", libpath = "", pure = true, symbol = "vprintf"} : '
        "(tensor<8xf32>) -> tensor<8xf32> loc(#loc3)", "the outside function 'vprintf'", 7,
    ),
    "a function of another library": (
        '%a = tt.extern_elementwise %v {libname = "mine", libpath = "/tmp/mine.bc", symbol = "__nv_expf"} : '
        "(tensor<8xf32>) -> tensor<8xf32> loc(#loc3)", "the outside function '__nv_expf'", 7,
    ),
    "a call of nothing": ("%a = tt.call @absent(%n) : (i32) -> i32", "a call of 'absent', which the module", None),
    "a value of nobody": ("%a = arith.addi %n, %nobody : i32 loc(#loc3)", "%nobody is used and not defined", 7),
    "a value twice": ("%c0 = arith.constant 1 : i32 loc(#loc3)", "%c0 is defined twice", None),
    "a giant tensor": ("%a = tt.splat %n : i32 -> tensor<4294967296xi32> loc(#loc3)", "more than 1,048,576", 7),
    "an empty tensor": ("%a = tt.splat %n : i32 -> tensor<0xi32> loc(#loc3)", "more than 1,048,576 elements", 7),
    "a constant of several values": ("%a = arith.constant dense<[1, 2]> : tensor<2xi32> loc(#loc3)", "several", 7),
    "another address space": ("%a = tt.bitcast %x : !tt.ptr<f32> -> !tt.ptr<f32, 3>", "address space '3'", None),
    "an unknown type": ("%a = tt.bitcast %n : i32 -> !llvm.ptr", "the type '!llvm.ptr'", None),
    "a branch to nowhere": ("cf.br ^bb9 loc(#loc3)", "a branch to 'bb9'", None),
    "text": ("hello", "where an operation should stand: 'hello'", None),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    line, why, place = REFUSED[name]
    with pytest.raises(IrError) as refused:
        read_module(with_line(line), "kernels_0.py")
    assert why in refused.value.message and refused.value.line == place


def test_one_module_holds_one_kernel() -> None:
    end = "  } loc(#loc)\n} loc(#loc)"
    second = "tt.func public @l() {\n    tt.return\n  }\n"
    with pytest.raises(IrError, match="one public kernel"):
        read_module(with_line("").replace(end, f"  }} loc(#loc)\n{second}}} loc(#loc)"), "kernels_0.py")
    with pytest.raises(IrError, match="more than one module"):
        read_module(with_line("").replace(end, f"{end}\nmodule {{\n{second}}}"), "kernels_0.py")
    helper = second.replace("public", "private")
    assert (
        len(read_module(with_line("").replace(end, f"  }} loc(#loc)\n{helper}}} loc(#loc)"), "kernels_0.py").functions)
        == 2
    )


def test_what_is_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = "scf.if %true {\n" * 100 + "}\n" * 100
    with pytest.raises(IrError, match="regions inside each other"):
        read_module(with_line("%true = arith.constant true\n" + deep), "kernels_0.py")
    with pytest.raises(IrError, match="characters, more than"):
        read_module(" " * (MOST_CHARACTERS + 1), "kernels_0.py")
    monkeypatch.setattr(reading, "MOST_OPERATIONS", 1000)
    many = "\n".join(f"%m{n} = arith.constant {n} : i32" for n in range(1001))
    with pytest.raises(IrError, match="more than 1,000 operations"):
        read_module(with_line(many), "kernels_0.py")


def test_a_circle_of_locations_has_no_line() -> None:
    text = with_line("").replace('#loc6 = loc("/tmp/work/kernels_0.py":7:4)', "#loc6 = loc(callsite(#loc3 at #loc6))")
    assert [op.line for op in operations_in(read_module(text, "kernels_0.py").kernel.body)][3] is None


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, len(KERNEL) - 1),
    st.integers(0, 40),
    st.text(alphabet=' %#"<>(){}[]:,=->xi32tensor\n^bb', max_size=12),
)
def test_damaged_text_is_refused_or_read(start: int, length: int, junk: str) -> None:
    """Nothing but IrError comes of it."""
    text = with_line("")
    try:
        read_module(text[:start] + junk + text[start + length :], "kernels_0.py")
    except IrError:
        pass
