"""What the text of a kernel may say, and the module that Triton is given of it."""

from __future__ import annotations

import ast

import pytest

from accelopt_core.toolchain import CompileError, TensorArgument
from nki_optimizer_triton.program.launch_program import (
    ConstexprValue,
    DtypeValue,
    FunctionValue,
    ModuleValue,
    TensorValue,
    Value,
)
from nki_optimizer_triton.source.functions import SourceFile, SourceRefused
from nki_optimizer_triton.source.module_text import HEADER, module_text
from nki_optimizer_triton.source.whitelist import check
from nki_optimizer_triton.toolchain import TritonToolchain
from triton_tests.honest import KERNELS
from triton_tests.wrappers import KERNEL, wrapper

NAMES: dict[str, Value] = {
    "tl": ModuleValue("triton.language"),
    "triton": ModuleValue("triton"),
    "libdevice": ModuleValue("triton.language.extra.libdevice"),
    "math": ModuleValue("math"),
    "other": FunctionValue(0, "other"),
    "SIZE": ConstexprValue(128),
    "COUNT": 5,
    "F32": DtypeValue("float32"),
    "HELD": TensorValue(0, "float32", 0, (1,), (1,)),
}


def checked(body: str, parameters: str = "p, BLOCK: tl.constexpr", decorator: str = "@triton.jit") -> None:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    file = SourceFile(f"import triton\nimport triton.language as tl\n\n{decorator}\ndef k({parameters}):\n{lines}\n")
    function = file.function("k")
    module_text(file, [function])
    check(function, NAMES)


ALLOWED = (
    "x = tl.load(p + tl.arange(0, BLOCK))\ntl.store(p, x.to(tl.float16).to(p.dtype.element_ty))",
    "for i in range(0, 5, 2):\n    x: tl.constexpr = SIZE // 2\nwhile x > 0:\n    x -= 1",
    "a, b = tl.max(p, 0, return_indices=True)\nreturn other(a)",
    "x = libdevice.tanh(p) + tl.math.exp(p) + tl.extra.libdevice.pow(p, p) + math.pi * math.log2(SIZE)",
    "x = [tl.load(p + i) for i in tl.static_range(4)]\ntl.static_assert(len(x) == 4, f'{BLOCK}')",
    "x = tl.zeros([BLOCK], F32) if COUNT == 5 else tl.full((BLOCK,), 1.0, tl.float32)\nassert BLOCK > 1",
    "x = tl.maximum(p, p, propagate_nan=tl.PropagateNan.ALL)\nx = p.T.shape[0] + p.type.element_ty.primitive_bitwidth",
    "x = triton.cdiv(COUNT, 2) + triton.language.cdiv(COUNT, 2) + triton.next_power_of_2(COUNT)",
    "x = tl.core.constexpr(3)",
    "if (y := tl.program_id(0)) == 0:\n    pass\nelif isinstance(y, tl.constexpr):\n    return",
)


@pytest.mark.parametrize("body", ALLOWED)
def test_a_kernel_may_say(body: str) -> None:
    checked(body)


REFUSED = {
    "inline assembly": ("tl.inline_asm_elementwise('mov', 'r', [p], tl.int32, True, 1)", "is refused: inline assembly"),
    "printing on the device": ("tl.device_print('x', p)", "tl.device_print is refused: printing"),
    "printing at compile time": ("tl.static_print(p)", "tl.static_print is refused: printing"),
    "print": ("print(p)", "print() in a kernel is refused: printing"),
    "a clock": ("x = tl.extra.cuda.globaltimer()", "tl.extra.cuda.globaltimer is refused: a clock"),
    "another clock": ("x = tl.clock()", "tl.clock is refused: a clock"),
    "the multiprocessor": ("x = tl.extra.cuda.smid()", "the number of the multiprocessor"),
    "outside functions": ("tl.core.extern_elementwise('a', 'b', [p], {}, True)", "functions outside libdevice"),
    "eval": ("eval('1')", "eval() in a kernel is refused: running text"),
    "exec": ("exec('1')", "exec() in a kernel is refused: running text"),
    "open": ("open('/etc/passwd')", "open() in a kernel is refused: reading files"),
    "an import": ("import os", "an import in a kernel is refused"),
    "an import by name": ("__import__('os')", "the kernel k names __import__"),
    "getattr": ("getattr(tl, 'load')", "the kernel k names getattr"),
    "globals": ("globals()", "the kernel k names globals"),
    "an unknown name": ("x = unknown + 1", "the kernel k names unknown, which is neither a number"),
    "a tensor of the file": ("x = HELD", "the kernel names the tensor HELD: hand it over"),
    "a class behind a value": ("x = p.__class__", ".__class__ is no attribute that a kernel may use"),
    "a function's globals": ("x = other.__globals__", ".__globals__ is no attribute"),
    "a function's function": ("x = other.fn", ".fn is no attribute"),
    "a private name": ("x = tl._builtin", "tl._builtin is private"),
    "a module behind a module": ("x = tl.core.inspect", "tl.core.inspect is nothing that a kernel may name"),
    "the builder": ("x = tl.semantic", "tl.semantic is nothing that a kernel may name"),
    "the compiler": ("x = triton.compile", "triton.compile is nothing that a kernel may name"),
    "the runtime": ("x = triton.runtime", "triton.runtime is nothing that a kernel may name"),
    "a function of math": ("x = math.sys", "math.sys is nothing that a kernel may name"),
    "a lambda": ("f = lambda a: a", "a lambda in a kernel is refused"),
    "a function inside": ("def f(a):\n    return a", "a function inside a kernel"),
    "a class": ("class C:\n    pass", "a class in a kernel is refused"),
    "global": ("global COUNT\nCOUNT = 6", "global in a kernel is refused"),
    "try": ("try:\n    pass\nfinally:\n    pass", "try in a kernel is refused"),
    "with": ("with tl.async_task([0]):\n    pass", "with in a kernel is refused"),
    "del": ("del p", "del in a kernel is refused"),
    "raise": ("raise p", "raise in a kernel is refused"),
    "yield": ("yield p", "yield in a kernel is refused"),
    "a dictionary": ("x = {}", "a dictionary in a kernel is refused"),
    "a generator": ("x = len(i for i in range(3))", "a generator in a kernel is refused"),
    "double stars": ("tl.load(p, **BLOCK)", "** in a call inside a kernel"),
    "a called call": ("x = tl.load(p)(p)", "a call of something that is no name"),
    "a called item": ("x = p[0](p)", "a call of something that is no name"),
    "bytes": ("x = b'1'", "the constant b'1'"),
    "a hidden annotation": ("x: tl.load(p) = 1", "the annotation tl.load(p)"),
    "a format of attributes": ("tl.static_assert(True, f'{p.__class__}')", ".__class__ is no attribute"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_may_not_say(name: str) -> None:
    body, why = REFUSED[name]
    with pytest.raises(SourceRefused) as refused:
        checked(body)
    assert why in refused.value.message and refused.value.line is not None


HEADS = {
    "a default that calls": ("p=open('x')", "@triton.jit", "the default open('x')"),
    "a default with a lambda": ("p=lambda: 0", "@triton.jit", "the default lambda: 0"),
    "a default in a list": ("p=[1, [print()]]", "@triton.jit", "the default print()"),
    "a default of another's": ("p=tl.core.inspect", "@triton.jit", "tl.core.inspect is nothing"),
    "a default that computes": ("p=1 << 100_000_000", "@triton.jit", "the default 1 << 100000000"),
    "keywords of any name": ("**p", "@triton.jit", "**p of a kernel"),
    "a decorator that calls": ("p", "@triton.jit(noinline=print())", "triton.jit(noinline=...): a literal"),
    "an unknown option": ("p", "@triton.jit(debug=True)", "triton.jit(debug=...) is refused"),
    "another's decorator": ("p", "@print\n@triton.jit", "decorated with print: only triton's own"),
    "a decorator made on the spot": ("p", "@(lambda f: f)\n@triton.jit", "only triton's own"),
    "no decorator": ("p", "", "k is no kernel: decorate it with @triton.jit"),
    "twice": ("p", "@triton.jit\n@triton.jit", "only triton's own"),
}


@pytest.mark.parametrize("name", HEADS)
def test_the_head_of_a_kernel_is_held_to_literals(name: str) -> None:
    parameters, decorator, why = HEADS[name]
    with pytest.raises(SourceRefused) as refused:
        checked("pass", parameters, decorator)
    assert why in refused.value.message


@pytest.mark.parametrize(
    "parameters",
    [
        "p=1",
        "p=-1.5",
        "p=(1, 'a', None)",
        "p=SIZE",
        "p=F32",
        "p=tl.float32",
        "p=tl.constexpr(3)",
        "p, *rest",
        "*, p=True",
    ],
)
def test_plain_defaults_are_let_through(parameters: str) -> None:
    checked("pass", parameters)


# --- the module ---------------------------------------------------------------------------------------

FILE = '''"""A file."""
import torch
import triton
import triton.language as tl
from triton import jit as compiled

open("/tmp/never-opened", "w")


@triton.autotune(configs=[print("never printed")], key=[])
@triton.jit(do_not_specialize=["n"], launch_metadata=print)
def first(p: torch.Tensor, n: "int64", é: tl.constexpr = 3, m: int = 4,
          k: open("never")
          = 5) -> torch.Tensor:
    """Kept."""
    return second(p)


never = 1


@compiled
def second(p: "tl.constexpr", q: tl.float32 = 1.0): return p
'''


def test_the_module_holds_the_kernels_in_their_lines_and_nothing_else() -> None:
    file = SourceFile(FILE)
    text = module_text(file, [file.function("second"), file.function("first")])
    lines = text.split("\n")
    assert len(lines) == len(FILE.split("\n"))
    assert lines[0] == HEADER
    assert lines[10] == "@triton.jit(do_not_specialize=['n'])"
    assert lines[11] == "def first(p: None, n: triton.language.int64, é: triton.language.constexpr = 3, m: int = 4,"
    assert lines[12:15] == ["          k: None", "          = 5) -> None:", '    """Kept."""']
    assert lines[21:23] == [
        "@triton.jit",
        "def second(p: triton.language.constexpr, q: triton.language.float32 = 1.0): return p",
    ]
    assert [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)] == ["first", "second"]
    assert "never" not in text and "torch" not in text


def test_names_that_a_kernel_reads_are_found() -> None:
    file = SourceFile(
        "import triton\n\n@triton.jit\ndef k(p, q=A, *rest):\n    for i in range(B):\n        x = C + p + i\n"
        "    y: tl.constexpr = x if D else [z for z in E]\n    rest[0]\n"
    )
    assert set(file.function("k").names) == {"A", "range", "B", "C", "tl", "D", "E"}


# --- by way of Triton ---------------------------------------------------------------------------------


def kernel(body: str, head: str = "x_ptr, y_ptr, n, BLOCK: tl.constexpr") -> str:
    """A file whose kernel has this body, from line 7 on."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    text = f"import torch\nimport triton\nimport triton.language as tl\n\n@triton.jit\ndef k({head}):\n{lines}\n"
    return text + "\n\ndef run(x):\n    y = torch.empty_like(x)\n    k[(1,)](x, y, x.numel(), 64)\n    return y\n"


X = TensorArgument((64,), "float32")


@pytest.mark.parametrize(
    ("body", "why", "line"),
    [
        ("i = tl.arange(0, BLOCK)\ntl.store(y_ptr + i, tl.load(x_ptr + i) @ 5)", "k: ", 8),
        ("i = tl.arange(0, 63)", "arange's range must be a power of 2", 7),
        ("tl.static_assert(BLOCK == 3, 'only three')", "only three", 7),
        ("i = tl.arange(0, BLOCK)\nx = tl.load(x_ptr + i)\nfor a in range(n):\n    x = x.to(tl.int32)", "k: ", 9),
        ("x = undefined_name", "the kernel k names undefined_name", 7),
        ("y = tl.sum(x_ptr, 5, 6, 7, 8, 9, 10)", "k: ", 7),
    ],
)
def test_what_triton_refuses_is_told_with_its_line(body: str, why: str, line: int, on_cpu: TritonToolchain) -> None:
    with pytest.raises(CompileError) as refused:
        on_cpu.compile(kernel(body), (X,), 60)
    assert why in refused.value.message and refused.value.line == line
    assert "\n" not in refused.value.message


def test_a_plain_global_is_refused_by_triton_and_a_constexpr_is_not(on_cpu: TritonToolchain) -> None:
    body = "i = tl.arange(0, BLOCK)\ntl.store(y_ptr + i, tl.load(x_ptr + i) * FACTOR)"
    plain = kernel(body).replace("\n\n@triton.jit", "\nFACTOR = 3\n@triton.jit")
    with pytest.raises(CompileError, match="FACTOR"):
        on_cpu.compile(plain, (X,), 60)
    on_cpu.compile(plain.replace("FACTOR = 3", "FACTOR = tl.constexpr(3)"), (X,), 60)
    on_cpu.compile(plain.replace("FACTOR = 3", "FACTOR: tl.constexpr = 3"), (X,), 60)


def test_too_much_shared_memory_takes_the_next_configuration(on_cpu: TritonToolchain) -> None:
    source = (KERNELS / "matmul.py").read_text(encoding="utf-8").replace('"BLOCK_K": 32', '"BLOCK_K": 64')
    both = source.replace("(64, 64, 3, 4), (32, 64, 4, 4), (64, 32, 5, 2)", "(128, 128, 8, 8), (32, 32, 2, 4)")
    assert both != source
    arguments = (TensorArgument((256, 256), "float16"),) * 2
    artifact = on_cpu.compile(both, arguments, 120)
    assert artifact.program.launches[0].config == 1
    with pytest.raises(CompileError, match="bytes of shared memory, and a block may use 232,448"):
        on_cpu.compile(both.replace(", (32, 32, 2, 4)", ""), arguments, 120)


def test_kernels_that_differ_in_words_have_one_digest(on_cpu: TritonToolchain) -> None:
    source = wrapper("y = torch.empty_like(x)\nlaunch(x, y)\nreturn y")
    renamed = (
        source.replace("x_ptr", "source")
        .replace("double", "twice")
        .replace("    i = tl", "    # a comment\n    i = tl")
    )
    other = source.replace("* 2,", "* 3,")
    wider = source.replace("BLOCK=256", "BLOCK=256, num_warps=8")
    arguments = (TensorArgument((64, 16), "float32"),)
    one, same, *others = (on_cpu.compile(text, arguments, 60) for text in (source, renamed, other, wider))
    assert KERNEL in source and on_cpu.program_digest(one) == on_cpu.program_digest(same)
    assert len({on_cpu.program_digest(each) for each in (one, *others)}) == 3


def test_what_was_compiled_once_is_kept(on_cpu: TritonToolchain) -> None:
    source = wrapper("y = torch.empty_like(x)\nlaunch(x, y)\nreturn y")
    arguments = (TensorArgument((64, 16), "float32"),)
    first = on_cpu.compile(source, arguments, 60)
    assert on_cpu.compile(source, arguments, 60).kernels[0] is first.kernels[0]
    assert on_cpu.compile(source.replace("* 2,", "* 4,"), arguments, 60).kernels[0] is not first.kernels[0]
