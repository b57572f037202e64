"""What only shows when kernels are executed: accesses outside, memory that nobody wrote, races, too much work."""

from __future__ import annotations

import numpy as np
import pytest
import triton.language

from accelopt_core.toolchain import CompileError, NotTimed, RunError, StepTimeout, TensorArgument
from nki_optimizer_triton.execution import executor
from nki_optimizer_triton.toolchain import TritonToolchain

N = 64


def file(body: str, run: str, head: str = "x_ptr, y_ptr, n, BLOCK: tl.constexpr") -> str:
    """A kernel `k` with its body from line 7 on, and the function that launches it."""
    inside = "\n".join(f"    {line}" for line in body.splitlines())
    around = "\n".join(f"    {line}" for line in run.splitlines())
    return (
        f"import torch\nimport triton\nimport triton.language as tl\n\n@triton.jit\ndef k({head}):\n{inside}\n\n"
        f"def run(x):\n{around}\n"
    )


DOUBLE = """i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)"""
OUT = "y = torch.empty_like(x)\n"
ONCE = "k[(1,)](x, y, 64, 64)\nreturn y"
LANES = "i = tl.arange(0, BLOCK)\n"

FAULTS = {
    # --- out of bounds ---
    "a grid that is too large": (
        file(DOUBLE.replace(", mask=i < n", ""), OUT + "k[(5,)](x, y, 64, 16)\nreturn y"),
        "kernel k: out of bounds: a load reaches element 79, and it has 64 of 4 bytes, of x_ptr (tensor argument 0) "
        "(line 8)",
    ),
    "a wrong number of elements": (
        file(DOUBLE, OUT + "k[(1,)](x, y, 65, 128)\nreturn y"), "a load reaches element 64, and it has 64",
    ),
    "a step back": (
        file(LANES + "tl.store(y_ptr + i, tl.load(x_ptr + i - 1))", OUT + ONCE),
        "a load reaches element -1, before its first, of x_ptr",
    ),
    "a store outside": (
        file(LANES + "tl.store(y_ptr + i * 2, tl.load(x_ptr + i))", OUT + ONCE),
        "a store reaches element 126, and it has 64 of 4 bytes, of y_ptr (the tensor allocated in line 11) (line 8)",
    ),
    "through a view": (
        file(DOUBLE, OUT + "k[(1,)](x[32:], y, 64, 64)\nreturn y"), "a load reaches element 95",
    ),
    "through an expanded view": (
        file(DOUBLE, OUT + "k[(2,)](x[:1].expand(128), y, 128, 64)\nreturn y"), "a load reaches element 127",
    ),
    "an atomic outside": (
        file("tl.atomic_add(y_ptr + n, 1.0)", OUT + ONCE), "an? ?atomic operation reaches element 64",
    ),
    "an address of nobody": (
        file("p = n.to(tl.int64).to(tl.pointer_type(tl.float32))\ntl.store(p, 1.0)", OUT + ONCE),
        "a store at address 0x40, which belongs to no tensor",
    ),
    "a misaligned address": (
        file(
            "p = (y_ptr.to(tl.int64) + 2).to(tl.pointer_type(tl.float32))\ntl.store(p, 1.0)",
            OUT + ONCE,
        ),
        "a store of 4 bytes at an address that is no multiple of 4",
    ),
    # --- what nobody wrote ---
    "an output that is never written": (
        file(DOUBLE, OUT + "k[(1,)](x, y, 60, 64)\nreturn y"), "output 0: 4 of 64 elements are never written",
    ),
    "no launch at all": (file(DOUBLE, OUT + "return y"), "64 of 64 elements are never written"),
    "an empty grid": (file(DOUBLE, OUT + "k[(0,)](x, y, 64, 64)\nreturn y"), "64 of 64 elements are never written"),
    "a tensor that is read first": (
        file(DOUBLE, OUT + "z = torch.empty_like(x)\nk[(1,)](z, y, 64, 64)\nreturn y"),
        "output 0 depends on memory that nobody wrote",
    ),
    "a sum into what is there": (
        file(LANES + "tl.store(y_ptr + i, tl.load(y_ptr + i) + tl.load(x_ptr + i))",
             OUT + ONCE),
        "output 0 depends on memory that nobody wrote",
    ),
    # --- inputs ---
    "a write to an input": (
        file(DOUBLE, OUT + "k[(1,)](x, y, 64, 64)\nk[(1,)](y, x, 64, 64)\nreturn y"),
        "the kernels write to tensor argument 0, which the function does not return",
    ),
    # --- races ---
    "two programs at one place": (
        file("tl.store(y_ptr + tl.arange(0, BLOCK), tl.program_id(0))", OUT + "k[(3,)](x, y, 64, 64)\nreturn y"),
        "a race: one store writes several values to element 0 of the tensor allocated in line 10",
    ),
    "one store twice": (
        file(LANES + "tl.store(y_ptr + i // 2, i)", OUT + ONCE),
        "a race: one store writes several values to element 0",
    ),
    "one after the other": (
        file(LANES + "if tl.program_id(0) == 0:\n    tl.store(y_ptr + i, i)\nelse:\n    tl.store(y_ptr + i, i + 1)",
             OUT + "k[(2,)](x, y, 64, 64)\nreturn y"),
        "a race: program 0 and program 1 write different values to element 0",
    ),
    "a read of what another wrote": (
        file("p = tl.program_id(0)\ntl.store(y_ptr + p, 1.0)\ntl.store(y_ptr + 32 + p, tl.load(y_ptr + (p + 1) % 32))",
             OUT + "k[(32,)](x, y, 64, 64)\nreturn y"),
        "a race: program 0 reads element 1 of",
    ),
    "a write to what another read": (
        file("p = tl.program_id(0)\nv = tl.load(y_ptr + (p + 1) % 64)\ntl.store(y_ptr + p, v + 1.0)",
             OUT + "y.zero_()\nk[(64,)](x, y, 64, 64)\nreturn y"),
        "a race: program 0 writes element 0 of",
    ),
    "a plain read beside atomics": (
        file("p = tl.program_id(0)\ntl.atomic_add(y_ptr, 1.0)\ntl.store(y_ptr + 1 + p, tl.load(y_ptr))",
             OUT + "y.zero_()\nk[(63,)](x, y, 64, 64)\nreturn y"),
        "adds to atomically in the same launch",
    ),
    "lanes that read what others stored": (
        file(LANES + "tl.store(y_ptr + i, tl.load(x_ptr + i))\nv = tl.load(y_ptr + (i + 1) % BLOCK)\n"
             "tl.store(y_ptr + i, v)", OUT + ONCE),
        "a race: program 0 reads element 1 of the tensor allocated in line 13, which another of its lanes stored, and "
        "no barrier is between: tl.debug_barrier() (line 9)",
    ),
    "all lanes that read what one of each stored": (
        file(LANES + "tl.store(y_ptr + i, tl.load(x_ptr + i))\ntotal = 0.0\nfor j in range(BLOCK):\n"
             "    total += tl.load(y_ptr + j)\ntl.store(y_ptr + i, total)", OUT + ONCE),
        "which another of its lanes stored, and no barrier is between",
    ),
    "lanes of a loop's last pass": (
        file(LANES + "tl.store(y_ptr + i, i)\nfor j in range(3):\n    tl.debug_barrier()\n"
             "    v = tl.load(y_ptr + (i + 1) % BLOCK)\n    tl.store(y_ptr + i, v)\n"
             "tl.store(y_ptr + i, tl.load(y_ptr + BLOCK - 1 - i))", OUT + ONCE),
        "which another of its lanes stored",
    ),
    # --- loops ---
    "a step of nothing": (
        file("for i in range(0, n, n - 64):\n    tl.store(y_ptr, i)", OUT + ONCE),
        "a loop that goes from 0 to 64 in steps of 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_with_kernel_line_and_tensor(name: str, on_cpu: TritonToolchain) -> None:
    import re

    source, why = FAULTS[name]
    artifact = on_cpu.compile(source, (TensorArgument((N,), "float32"),), 60)
    with pytest.raises(RunError) as fault:
        on_cpu.run(artifact, [np.arange(1, N + 1, dtype=np.float32)], 60)
    assert why in str(fault.value) or re.search(why, str(fault.value)), str(fault.value)


def test_an_argument_that_no_kernel_writes_is_not_returned(on_cpu: TritonToolchain) -> None:
    source = file(DOUBLE, OUT + "k[(1,)](x, y, 64, 64)\nreturn x")
    with pytest.raises(CompileError, match="returns its tensor argument 0, which no kernel writes"):
        on_cpu.compile(source, (TensorArgument((N,), "float32"),), 60)


RIGHT = {
    "lanes that read what others stored, behind a barrier": (
        LANES + "tl.store(y_ptr + i, tl.load(x_ptr + i))\ntl.debug_barrier()\nv = tl.load(y_ptr + (i + 1) % BLOCK)\n"
        "tl.debug_barrier()\ntl.store(y_ptr + i, v)",
        "k[(1,)](x, y, 64, 64)", lambda x: np.roll(x, -1)),
    "lanes that read what they stored": (
        LANES + "tl.store(y_ptr + i, tl.load(x_ptr + i))\ntl.store(y_ptr + i, tl.load(y_ptr + i) + 1)",
        "k[(1,)](x, y, 64, 64)", lambda x: x + 1),
    "lanes that stored the same value": (
        LANES + "tl.store(y_ptr + i // 2, i // 2)\ntl.store(y_ptr + 32 + i // 2, tl.load(y_ptr + i // 2))",
        "k[(1,)](x, y, 64, 64)", lambda x: np.r_[0:32, 0:32]),
    "the same value by several programs": (
        LANES + "tl.store(y_ptr + i, tl.load(x_ptr + i))", "k[(5,)](x, y, 64, 64)", lambda x: x),
    "a lock": (
        "p = tl.program_id(0)\nwhile tl.atomic_cas(lock, 0, 1) == 1:\n    pass\ni = tl.arange(0, BLOCK)\n"
        "tl.store(y_ptr + i, tl.load(y_ptr + i) + tl.load(x_ptr + i) * (p + 1))\ntl.atomic_xchg(lock, 0)",
        "lock = torch.zeros(1, dtype=torch.int32, device='cuda')\ny.zero_()\nk[(3,)](x, y, lock, 64)", lambda x: 6 * x),
    "the last program joins": (
        "p = tl.program_id(0)\ni = tl.arange(0, BLOCK)\ntl.store(parts + p * BLOCK + i, tl.load(x_ptr + i) * (p + 1))\n"
        "done = tl.atomic_add(parts + 4 * BLOCK, 1.0)\nif done == 3:\n"
        "    total = tl.zeros([BLOCK], tl.float32)\n"
        "    for q in range(4):\n        total += tl.load(parts + q * BLOCK + i)\n"
        "    tl.store(y_ptr + i, total)",
        "parts = torch.zeros(4 * 64 + 1, device='cuda')\nk[(4,)](x, y, parts, 64)", lambda x: 10 * x),
    "plain loads and stores that are atomic": (
        LANES + "tl.atomic_store(y_ptr + i, tl.atomic_load(x_ptr + i), mask=i < n)",
        "k[(1,)](x, y, 64, 64)", lambda x: x),
    "in place, each its own": (
        "i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "tl.store(y_ptr + i, tl.load(y_ptr + i) + tl.load(x_ptr + i))",
        "y.fill_(1)\nk[(4,)](x, y, 64, 16)", lambda x: x + 1),
    "integers added atomically": (
        LANES + "tl.atomic_add(y_ptr + i % 8, 1.0)\ntl.atomic_max(y_ptr + 8 + i % 56, i.to(tl.float32))",
        "y.zero_()\nk[(2,)](x, y, 64, 64)",
        lambda x: np.concatenate([np.full(8, 16.0), np.r_[56:64], np.r_[8:56]])),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_no_fault_is_right(name: str, on_cpu: TritonToolchain) -> None:
    body, launch, expected = RIGHT[name]
    if "atomic_load" in body and not hasattr(triton.language, "atomic_load"):
        pytest.skip("this version of Triton has no tl.atomic_load")
    head = "x_ptr, y_ptr, n, BLOCK: tl.constexpr"
    for word in ("lock", "parts"):
        head = head.replace("n, ", f"{word}, ") if word in body else head
    artifact = on_cpu.compile(file(body, f"{OUT}{launch}\nreturn y", head), (TensorArgument((N,), "float32"),), 60)
    x = np.arange(N, dtype=np.float32)
    (y,) = on_cpu.run(artifact, [x], 60)
    assert np.array_equal(y, expected(x))


def test_an_endless_kernel_is_ended_and_the_next_one_runs(on_cpu: TritonToolchain) -> None:
    x = np.arange(N, dtype=np.float32)
    specs = (TensorArgument((N,), "float32"),)
    endless = on_cpu.compile(
        file("i = n\nwhile i > 0:\n    i = tl.maximum(i, 1)\ntl.store(y_ptr, i)", OUT + ONCE), specs, 60
    )
    with pytest.raises(StepTimeout, match="run took more than 2 s"):
        on_cpu.run(endless, [x], 2)
    honest = on_cpu.compile(file(DOUBLE, OUT + ONCE), specs, 60)
    assert np.array_equal(on_cpu.run(honest, [x], 60)[0], 2 * x)


SPINNING = ("while tl.load(y_ptr + 1) == 0.0:\n    tl.store(y_ptr, n)\n", "for i in range(1 << 30):\n    n += i\n")


@pytest.mark.parametrize("body", SPINNING)
def test_a_kernel_that_spins_is_ended_by_the_number_of_its_operations(
    body: str, on_cpu: TritonToolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million, which take less than a minute; here some."""
    assert executor.MOST_OPERATIONS == 1_000_000
    monkeypatch.setattr(executor, "MOST_OPERATIONS", 20_000)
    source = file(f"{body}tl.store(y_ptr, n)", OUT + "y.zero_()\n" + ONCE)
    artifact = on_cpu.compile(source, (TensorArgument((N,), "float32"),), 60)
    with pytest.raises(NotTimed, match="it has not ended after 20,000 operations: whether it does, a GPU must show"):
        on_cpu.run(artifact, [np.zeros(N, np.float32)], 600)


def test_what_takes_minutes_needs_a_gpu_and_says_how_much_it_is(on_cpu: TritonToolchain) -> None:
    source = file(
        "acc = tl.zeros([BLOCK], tl.float32)\nlanes = tl.arange(0, BLOCK)\n"
        "for i in range(n):\n    acc += i * tl.program_id(0)\n"
        "tl.store(y_ptr + lanes, acc, mask=(lanes >= 0) & (tl.program_id(0) == 0))",
        OUT + "k[(1_000_000,)](x, y, 1000, 64)\nreturn y",
    )
    artifact = on_cpu.compile(source, (TensorArgument((N,), "float32"),), 60)
    with pytest.raises(
        NotTimed, match=r"about 1\.\de\+11 element operations \(1,000,000 programs of k, blocks of 64 elements\)"
    ):
        on_cpu.run(artifact, [np.zeros(N, np.float32)], 60)


def test_what_only_a_gpu_has_needs_one(on_cpu: TritonToolchain) -> None:
    source = file(LANES + "tl.store(y_ptr + i, libdevice.j0(tl.load(x_ptr + i)))", OUT + ONCE).replace(
        "\n\n@triton", "\nfrom triton.language.extra import libdevice\n@triton"
    )
    artifact = on_cpu.compile(source, (TensorArgument((N,), "float32"),), 60)
    with pytest.raises(NotTimed, match="libdevice's __nv_j0f is computed on a GPU only"):
        on_cpu.run(artifact, [np.zeros(N, np.float32)], 60)
    with pytest.raises(NotTimed, match="timing needs an NVIDIA GPU"):
        on_cpu.time(artifact, [], 1, 1, 60)


def test_other_tensors_than_it_was_compiled_for_are_refused(on_cpu: TritonToolchain) -> None:
    artifact = on_cpu.compile(file(DOUBLE, OUT + ONCE), (TensorArgument((N,), "float32"),), 60)
    for wrong in ([], [np.zeros(N + 1, np.float32)], [np.zeros(N, np.float64)]):
        with pytest.raises(RunError, match="a function traced for"):
            on_cpu.run(artifact, wrong, 60)
