"""What a candidate's function may not do, refused by name while it is traced."""

from __future__ import annotations

import pytest

from accelopt_core.task import Surroundings
from accelopt_core.toolchain import CompileError, ConstantArgument, StepTimeout, TensorArgument
from nki_optimizer_triton.program.launch_program import Fill, LaunchProgram
from nki_optimizer_triton.toolchain import TritonToolchain
from triton_tests.wrappers import HONEST, KERNEL, wrapper

X = TensorArgument((64, 16), "float32")


def traced(on_cpu: TritonToolchain, source: str, *arguments: object, timeout_s: float = 60) -> LaunchProgram:
    return on_cpu._tracer.trace(source, arguments or (X,), timeout_s)  # type: ignore[arg-type]


def test_an_honest_wrapper_is_traced(on_cpu: TritonToolchain) -> None:
    program = traced(on_cpu, HONEST)
    assert [launch.grid for launch in program.launches] == [(4, 1, 1)]
    assert program.outputs[0].buffer == 1 and program.buffers[1].line == 19
    assert on_cpu.isolation


REFUSED = {
    # --- computing in torch ---
    "a torch function": ("return torch.softmax(x, -1)", "torch.softmax computes outside Triton kernels"),
    "a function of nn.functional": (
        "return torch.nn.functional.silu(x)", "torch.nn.functional.silu computes outside Triton kernels",
    ),
    "an operator": ("return x + x", "the operator add of tensors computes outside"),
    "a reflected operator": ("return 2.0 * x", "the operator rmul of tensors computes outside"),
    "a comparison": ("return x == x", "the operator eq of tensors computes outside"),
    "a method": ("return x.softmax(-1)", "Tensor.softmax computes outside Triton kernels"),
    "a sum": ("return x.sum()", "Tensor.sum computes outside"),
    "a conversion": ("return x.to(torch.float16)", "a conversion from torch.float32 to torch.float16 is computed"),
    "a conversion by name": ("return x.half()", "is computed: do it in a @triton.jit kernel"),
    "a copy": ("return x.clone()", "Tensor.clone copies a tensor"),
    "a copy by contiguous": ("return x.t().contiguous()", "contiguous() of a tensor that is not contiguous copies it"),
    "a copy by reshape": ("return x.t().reshape(-1)", "reshape of a tensor"),
    "a copy into": ("y = torch.empty_like(x)\ny.copy_(x)\nreturn y", "Tensor.copy_ copies a tensor"),
    "a fill with a tensor": ("y = torch.empty_like(x)\ny[:] = x\nreturn y", "fill_ with Tensor"),
    "indexing with a tensor": ("return x[x]", "indexing a tensor with Tensor copies"),
    "random numbers": ("return torch.randn_like(x)", "torch.randn_like computes outside"),
    "a compiled function": ("return torch.compile(lambda a: a)(x)", "torch.compile computes outside"),
    "a synchronization": ("torch.cuda.synchronize()\nreturn x", "torch.cuda.synchronize computes outside"),
    # --- reading what is not there ---
    "an item": ("return x[0, 0].item()", "Tensor.item reads a tensor's contents"),
    "a list": ("return x.tolist()", "Tensor.tolist reads a tensor's contents"),
    "a copy on the host": ("return x.cpu()", "Tensor.cpu reads a tensor's contents"),
    "a numpy array": ("import numpy\nreturn numpy.asarray(x)", "array(tensor) reads a tensor's contents"),
    "a truth value": ("y = torch.empty_like(x)\nif x[0, 0]:\n    launch(x, y)\nreturn y", "bool(tensor) reads"),
    "a float": ("return float(x[0, 0])", "float(tensor) reads a tensor's contents"),
    "an address": ("return x.data_ptr()", "Tensor.data_ptr is refused: a traced tensor has no address"),
    "a storage": ("return x.untyped_storage()", "a traced tensor has no address"),
    # --- what it returns ---
    "nothing": ("launch(x, x)", "the function returns nothing"),
    "a number": ("return 5", "the function returns a int"),
    "a view of its argument": ("launch(x, x)\nreturn x[1:]", "returns a view of its tensor argument 0"),
    "its argument as another type": ("return x.view(torch.int32)", "an argument as something else"),
    # --- what is kept between calls ---
    "a tensor of the file": ("launch(x, KEPT)\nreturn KEPT", "allocates a tensor while the file is read in"),
    "a cached output": (
        "if 'y' not in CACHE:\n    CACHE['y'] = torch.empty_like(x)\nlaunch(x, CACHE['y'])\nreturn CACHE['y']",
        "a tensor of an earlier call",
    ),
    "an output cached by its argument": (
        "if id(x) not in CACHE:\n    CACHE[id(x)] = len(CACHE)\nn = CACHE[id(x)]\ny = torch.empty_like(x)\n"
        "launch(x, y, x.numel() - n)\nreturn y",
        "call 2 does something else than call 1",
    ),
    "a count of calls": (
        "CACHE['n'] = CACHE.get('n', 0) + 1\ny = torch.empty_like(x)\nif CACHE['n'] < 3:\n    launch(x, y)\nreturn y",
        "call 3 does something else than call 1 (0 launches and fills, not 1)",
    ),
    "chance": (
        "import random\ny = torch.empty_like(x)\nlaunch(x, y, random.randrange(1 << 40))\nreturn y",
        "call 2 does something else than call 1",
    ),
    # --- launches ---
    "a whole number for a grid": ("y = torch.empty_like(x)\ndouble[4](x, y, 5, 256)\nreturn y", "a grid is a tuple"),
    "a fraction for a grid": ("double[(x.numel() / 256,)](x, x, 5, 256)\nreturn x", "divide with // or triton.cdiv"),
    "an unknown option": ("double[(4,)](x, x, 5, 256, waves_per_eu=2)\nreturn x", "no parameter waves_per_eu"),
    "another pipeline": ("double[(4,)](x, x, 5, 256, launch_pdl=True)\nreturn x", "launch_pdl=True"),
    "ptxas options": ("double[(4,)](x, x, 5, 256, ptx_options='-v')\nreturn x", "of launch options there are"),
    "too many warps": ("double[(4,)](x, x, 5, 256, num_warps=64)\nreturn x", "num_warps: 64 is not from 1 to 32"),
    "three warps": ("double[(4,)](x, x, 5, 256, num_warps=3)\nreturn x", "num_warps=3 is no power of 2"),
    "too large a grid": ("double[(1, 70_000)](x, x, 5, 256)\nreturn x", "70000 is not from 0 to 65,535"),
    "a negative grid": ("double[(-1,)](x, x, 5, 256)\nreturn x", "-1 is not from 0 to"),
    "a call without a grid": ("double(x, x, 5, 256)\nreturn x", "double(...) is called without a grid"),
    "a warm-up": ("double.warmup(x, x, 5, 256, grid=(1,))\nreturn x", "double.warmup: kernels are launched with"),
    "a tensor of the host": (
        "y = torch.empty(5)\ndouble[(1,)](x, y, 5, 256)\nreturn y", "is a tensor on cpu: allocate it on the GPU",
    ),
    "a type of torch": ("double[(1,)](x, x, torch.float32, 256)\nreturn x", "kernels take tl.float32"),
    "a list of lambdas": ("double[(1,)](x, x, [lambda: 0], 256)\nreturn x", "is a function"),
    "device code on the host": ("return tl.load(x)", "triton.language.load is device code"),
    "a benchmark": ("return triton.testing.do_bench(lambda: x)", "triton.testing.do_bench measures"),
    "the compiler": ("return triton.compile(double)", "triton.compile reaches into Triton's compiler"),
    "what a launch returns": ("k = double[(1,)](x, x, 5, 256)\nreturn k.asm['ptx']", "is not there while a function"),
    # --- views ---
    "a view beyond its storage": ("return torch.as_strided(x, (1 << 20,), (1,))", "computes outside"),
    "a strided view beyond its storage": (
        "y = x.as_strided((1 << 20,), (1,))\nlaunch(y, y)\nreturn x", "reaches beyond its storage",
    ),
    "a fill of strided elements": ("y = torch.empty_like(x)\ny.t()[1:].zero_()\nreturn y", "a fill of a tensor"),
    # --- patching ---
    "a patched torch": ("torch.empty = len\nreturn x", "assigns to torch.empty, which is not the candidate's"),
    "a patched triton": ("triton.cdiv = max\nreturn x", "assigns to triton.cdiv"),
    "a patched language": ("tl.load = max\nreturn x", "assigns to triton.language.load"),
    "a patched tensor": ("torch.Tensor.numel = len\nreturn x", "assigns to Tensor.numel"),
    "a deleted name": ("del torch.empty\nreturn x", "deletes torch.empty"),
    # --- too much ---
    "ten thousand launches": ("for _ in range(10_000):\n    launch(x, x)\nreturn x", "more than 4,096 launches"),
    "ten thousand tensors": ("for _ in range(10_000):\n    torch.empty_like(x)\nreturn x", "more than 4,096 tensors"),
    "terabytes": ("y = torch.empty(1 << 38, device=x.device)\nreturn y", "its tensors need"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrapper_is_refused_by_name(name: str, on_cpu: TritonToolchain) -> None:
    body, why = REFUSED[name]
    before = "CACHE = {}\n" + ("KEPT = torch.empty(64, 16, device='cuda')\n" if "KEPT" in body else "")
    with pytest.raises(CompileError) as refused:
        traced(on_cpu, wrapper(body, before))
    assert why in str(refused.value), str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_line_of_what_is_refused_is_told(on_cpu: TritonToolchain) -> None:
    with pytest.raises(CompileError) as refused:
        traced(on_cpu, wrapper("y = torch.empty_like(x)\nreturn torch.relu(y)"))
    assert refused.value.line == 20


FILES = {
    "no function": (KERNEL, "defines no function run or kernel or optimized_kernel"),
    "a kernel of that name only": (KERNEL.replace("def double", "def run"), "defines no function"),
    "a syntax error": (KERNEL + "def run(x:\n", "SyntaxError"),
    "an error of its own": (KERNEL + "raise ValueError('of its own')\n", "ValueError: of its own"),
    "a kernel inside": (
        wrapper("return inner()(x)", "def inner():\n    @triton.jit\n    def k(p): pass\n    return k[(1,)]\n"),
        "the kernel k is defined inside something else",
    ),
    "two kernels of one name": (
        HONEST + "\n@triton.jit\ndef double(x_ptr, y_ptr, n, BLOCK):\n    pass\n", "two functions are called double",
    ),
    "a jit of something else": (wrapper("return x", "k = triton.jit(5)\n"), "something that is no function"),
    "a built-in kernel": (
        wrapper("exec('def k(p): pass', globals())\ntriton.jit(k)[(1,)](x)\nreturn x"), "is in no file of the",
    ),
    "a kernel that is not decorated": (
        wrapper("triton.jit(plain)[(1,)](x)\nreturn x", "def plain(p):\n    pass\n"), "plain is no kernel: decorate it",
    ),
    "a kernel under another's decorator": (
        wrapper("same_kernel[(1,)](x)\nreturn x",
                "def same(f):\n    return f\n\n\n@same\n@triton.jit\ndef same_kernel(p):\n    pass\n"),
        "same_kernel is decorated with same: only triton's own",
    ),
    "a kernel with hidden options": (
        wrapper("k[(1,)](x)\nreturn x", "@triton.jit(debug=True)\ndef k(p):\n    pass\n"), "jit(debug=...) is refused",
    ),
    "a global that is a function": (
        wrapper("k[(1,)](x)\nreturn x", "import os\n\n\n@triton.jit\ndef k(p):\n    os.getpid()\n"),
        "a kernel names os, which is neither a number",
    ),
    "a global that is a tensor": (
        wrapper("global T\nT = torch.empty_like(x)\nk[(1,)](x)\nreturn x",
                "T = 0\n\n\n@triton.jit\ndef k(p):\n    T + 1\n"),
        "the kernel names the tensor T: hand it over",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_refused_by_name(name: str, on_cpu: TritonToolchain) -> None:
    source, why = FILES[name]
    with pytest.raises(CompileError) as refused:
        on_cpu.compile(source, (X,), 60)
    assert why in str(refused.value), str(refused.value)


def test_an_endless_wrapper_is_ended(on_cpu: TritonToolchain) -> None:
    with pytest.raises(StepTimeout):
        traced(on_cpu, wrapper("while True:\n    pass"), timeout_s=3)


def test_a_wrapper_that_leaves_its_process_is_told_of(on_cpu: TritonToolchain) -> None:
    with pytest.raises(CompileError, match="its first 8 bytes are not those of a launch program"):
        traced(on_cpu, wrapper("import os\nos._exit(0)"))
    with pytest.raises(CompileError, match="the process that traced the file died \\(signal 11\\)"):
        traced(on_cpu, wrapper("import ctypes\nctypes.string_at(0)"))


def test_nothing_of_the_judge_can_be_read_or_started(on_cpu: TritonToolchain) -> None:
    for body in ("open('/etc/shadow')", "import subprocess\nsubprocess.run(['true'])", "import os\nos.fork()"):
        with pytest.raises(CompileError, match="Error"):
            traced(on_cpu, wrapper(f"{body}\nreturn x"))


# --- what is allowed ----------------------------------------------------------------------------------


def test_allocations_views_and_fills(on_cpu: TritonToolchain) -> None:
    program = traced(
        on_cpu,
        wrapper(
            """
            y = torch.zeros(64, 16, dtype=torch.int64, device="cuda")
            z = x.new_full((4,), 1.5)
            z[1:3] = 2
            views = [x.view(8, 128)[2:4, ::2], x.t(), x.flatten(), x[:, None, 3], x.expand(2, 64, 16)]
            views += [x.unsqueeze(0).squeeze(), x.permute(1, 0).transpose(0, 1), x.narrow(0, 1, 2), x.chunk(4, 1)[3]]
            for v in views:
                double[(1,)](v, y, v.stride(-1), BLOCK=256)
            return {"y": y, "z": z}
            """.replace("            ", "").strip()
        ),
    )
    fills = [step for step in program.steps if isinstance(step, Fill)]
    assert [(f.value, f.tensor.elements, f.tensor.offset) for f in fills] == [(0, 1024, 0), (1.5, 4, 0), (2, 2, 1)]
    views = [launch.arguments[0][1] for launch in program.launches]
    assert [(v.offset, v.shape, v.strides) for v in views] == [  # type: ignore[union-attr]
        (256, (2, 64), (128, 2)),
        (0, (16, 64), (1, 16)),
        (0, (1024,), (1,)),
        (3, (64, 1), (16, 16)),
        (0, (2, 64, 16), (0, 16, 1)),
        (0, (64, 16), (16, 1)),
        (0, (64, 16), (16, 1)),
        (16, (2, 16), (16, 1)),
        (12, (64, 4), (16, 1)),
    ]
    assert [program.buffers[output.buffer].dtype for output in program.outputs] == ["int64", "float32"]


def test_a_configuration_is_chosen_and_all_are_declared(on_cpu: TritonToolchain) -> None:
    tuned = HONEST.replace(
        "@triton.jit",
        "@triton.autotune(configs=[triton.Config({'BLOCK': b}, num_warps=b // 32) for b in (64, 128)], key=['n'])\n"
        "@triton.jit",
    ).replace(
        "double[(triton.cdiv(n, 256),)](x, y, n, BLOCK=256)",
        "double[lambda meta: (triton.cdiv(n, meta['BLOCK']),)](x, y, n)",
    )
    for number, grid in ((0, 16), (1, 8)):
        program = on_cpu._tracer.trace(tuned, (X,), 60, choices={"double": number})
        (launch,) = program.launches
        assert launch.grid[0] == grid and launch.config == number and dict(launch.arguments)["BLOCK"] == 1024 // grid
        assert launch.options.num_warps == 2 * (1 + number)
    (tunable,) = program.tunables
    assert [dict(config)["BLOCK"] for config in tunable.configs] == [64, 128]
    assert [dict(config)["num_warps"] for config in tunable.configs] == [2, 4]


def test_hooks_of_a_configuration_fill_before_its_kernel(on_cpu: TritonToolchain) -> None:
    tuned = HONEST.replace(
        "@triton.jit",
        "@triton.autotune([triton.Config({'BLOCK': 64}, pre_hook=lambda named: named['y_ptr'].zero_())], key=[])\n"
        "@triton.jit",
    ).replace("(x, y, n, BLOCK=256)", "(x, y, n)")
    program = traced(on_cpu, tuned)
    assert isinstance(program.steps[0], Fill) and program.steps[0].tensor == program.outputs[0]


def test_constants_and_types_are_handed_over(on_cpu: TritonToolchain) -> None:
    source = wrapper("assert k == 3 and flag is True and name == 'a' and pair == (1, (2.5, None))\n"
                     "y = torch.empty_like(x)\nlaunch(x, y)\nreturn y", signature="x, k, flag, name, pair")  # fmt: skip
    constants = [ConstantArgument(value) for value in (3, True, "a", (1, (2.5, None)))]
    assert traced(on_cpu, source, X, *constants).outputs


def test_a_kernel_in_a_neighbouring_file_is_found(on_cpu: TritonToolchain) -> None:
    around = Surroundings("entry", "package.ops", (("package/__init__.py", ""), ("package/parts.py", KERNEL)))
    source = "import torch\nfrom .parts import double\n\n\ndef entry(x):\n    y = torch.empty_like(x)\n" \
             "    double[(4,)](x, y, x.numel(), 256)\n    return y\n"  # fmt: skip
    artifact = on_cpu.compile(source, (X,), 120, around)
    assert artifact.program.launches[0].function.file == 2


def test_a_function_of_another_file_is_no_candidate(on_cpu: TritonToolchain) -> None:
    around = Surroundings("run", "package.ops", (("package/__init__.py", ""), ("package/parts.py", HONEST)))
    with pytest.raises(CompileError, match="run is imported from another file"):
        on_cpu.compile("from .parts import run\n", (X,), 60, around)
