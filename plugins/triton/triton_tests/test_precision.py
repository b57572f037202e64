"""Which narrow types a kernel computes in, by its IR: what its own tensors are is not held against it."""

from __future__ import annotations

import pytest

from accelopt_core.toolchain import TensorArgument
from nki_optimizer_triton.toolchain import TritonToolchain
from triton_tests.test_faults import LANES, ONCE, OUT, file

X32, X16 = TensorArgument((64,), "float32"), TensorArgument((64,), "bfloat16")
SQUARE = "i = tl.arange(0, 64)\na = tl.load(x_ptr + i).reshape(8, 8)\na = tl.join(a, a).reshape(8, 16)\n"
PRODUCT = SQUARE + "c = tl.dot(tl.trans(a), a{how})\ntl.store(y_ptr + i, tl.sum(c.reshape(64, 4), axis=1))"
INTO_SCRATCH = (
    "y = torch.empty_like(x)\nz = torch.empty((64,), dtype=torch.float16, device=x.device)\n"
    "k[(1,)](x, z, 64, 64)\nk[(1,)](z, y, 64, 64)\nreturn y"
)

CASES = {
    "float32 all through": (X32, file(f"{LANES}tl.store(y_ptr + i, tl.load(x_ptr + i) * 2)", OUT + ONCE), ()),
    "read, widened, computed and rounded once": (
        X16, file(f"{LANES}tl.store(y_ptr + i, tl.exp(tl.load(x_ptr + i).to(tl.float32)))", OUT + ONCE), (),
    ),
    "computed narrow": (
        X16, file(f"{LANES}x = tl.load(x_ptr + i)\ntl.store(y_ptr + i, x + x)", OUT + ONCE), ("bfloat16",),
    ),
    "rounded on the way": (
        X32,
        file(f"{LANES}x = tl.load(x_ptr + i).to(tl.float16).to(tl.float32)\ntl.store(y_ptr + i, x)", OUT + ONCE),
        ("float16",),
    ),
    "rounded, moved and widened": (
        X32,
        file(f"{LANES}x = tl.load(x_ptr + i).to(tl.bfloat16).reshape(8, 8)\n"
             "tl.store(y_ptr + i, tl.trans(x).to(tl.float32).reshape(64))", OUT + ONCE),
        ("bfloat16",),
    ),
    "kept narrow between two kernels": (
        X32, file(f"{LANES}tl.store(y_ptr + i, tl.load(x_ptr + i))", INTO_SCRATCH), ("float16",),
    ),
    "a product, as Triton makes it where nothing is said": (X32, file(PRODUCT.format(how=""), OUT + ONCE), ("tf32",)),
    "a product in float32": (X32, file(PRODUCT.format(how=", input_precision='ieee'"), OUT + ONCE), ()),
    "a product of three in tf32": (X32, file(PRODUCT.format(how=", input_precision='tf32x3'"), OUT + ONCE), ()),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_what_counts(what: str, on_cpu: TritonToolchain) -> None:
    spec, source, expected = CASES[what]
    assert on_cpu.facts(on_cpu.compile(source, [spec], 120)).low_precision == expected
