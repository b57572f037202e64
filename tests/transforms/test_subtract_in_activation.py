"""A maximum subtracted as the activation's bias: what becomes one pass, the same numbers, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.subtract_in_activation import SubtractInActivation
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

INTO = SubtractInActivation()
X = random(128, 512)

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x):
    P, N = x.shape
    out = nl.ndarray((P, N), dtype=x.dtype, buffer=nl.shared_hbm)
    # reused
    shifted = nl.ndarray((P, N), dtype=nl.float32, buffer=nl.sbuf)
    scale = 0.5
    for m in nl.affine_range(2):
        row = nl.ndarray((P, N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=row, src=x[0:P, 0:N])
        most = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=most, op=nl.maximum, data=row, axis=1)
        # stable
        nisa.tensor_scalar(dst=shifted, data=row, op0=nl.subtract, operand0=most)
        weights = nl.ndarray((P, N), dtype=nl.float32, buffer=nl.sbuf)
        # e^x
        nisa.activation(dst=weights, op=nl.exp, data=shifted)
        nisa.dma_copy(dst=out[0:P, 0:N], src=weights)
    return out
"""
)
SUBTRACT = "nisa.tensor_scalar(dst=shifted, data=row, op0=nl.subtract, operand0=most)"
EXP = "nisa.activation(dst=weights, op=nl.exp, data=shifted)"

SHIFTED = "    shifted = nl.ndarray((P, N), dtype=nl.float32, buffer=nl.sbuf)\n"
WEIGHTS = "        weights = nl.ndarray((P, N), dtype=nl.float32, buffer=nl.sbuf)\n"

OFFERED = {
    "whole tiles": KERNEL,
    "made in the loop": KERNEL.replace(SHIFTED, "").replace("        # stable\n", f"        # stable\n    {SHIFTED}"),
    "by position": KERNEL.replace(
        "tensor_scalar(dst=shifted, data=row, op0=nl.subtract, operand0=most)",
        "tensor_scalar(shifted, row, nl.subtract, most)",
    ).replace("activation(dst=weights, op=nl.exp, data=shifted)", "activation(weights, nl.exp, shifted)"),
    "parts": KERNEL.replace(SUBTRACT, SUBTRACT.replace("shifted", "shifted[0:64, 0:N]").replace("row", "row[0:64, 0:N]")
        .replace("most", "most[0:64, 0:1]")).replace(
        EXP, "nisa.memset(dst=weights, value=0.0)\n        "
        "nisa.activation(dst=weights[0:64, 0:N], op=nl.exp, data=shifted[0:64, 0:N])"),
    "a scale after": KERNEL.replace("data=shifted)", "data=shifted, scale=scale, bias=None)"),
    "a scale of one": KERNEL.replace("data=shifted)", "data=shifted, scale=1.0)"),
    "a scale before": KERNEL.replace("operand0=most)", "operand0=most, op1=nl.multiply, operand1=0.25)"),
    "both": KERNEL.replace("operand0=most)", "operand0=most, op1=nl.multiply, operand1=0.25)").replace(
        "data=shifted)", "data=shifted, scale=1.0 / N)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OFFERED)
def test_one_pass_less_and_the_same_numbers(case):
    source = OFFERED[case]
    assert list(sites(INTO, source)) == ["shifted"]

    made = applied(INTO, source, "shifted")

    np.testing.assert_allclose(run(made, X), run(source, X), rtol=1e-6, atol=1e-9)
    assert proved_on(made, source, X).equivalence.finding is Finding.HELD
    assert "shifted" not in made.replace("# reused", "")
    for comment in ("# reused", "# stable", "# e^x"):
        assert comment in made
    assert predictor(X)(made) < predictor(X)(source)


def test_without_a_scale_not_a_bit_changes():
    np.testing.assert_array_equal(run(applied(INTO, KERNEL, "shifted"), X), run(KERNEL, X))


REFUSALS = {
    "the other way round": (KERNEL.replace("operand0=most)", "operand0=most, reverse0=True)"), "does more than"),
    "the difference is needed again": (
        KERNEL.replace("src=weights", "src=shifted"), "not read by exactly one other instruction"
    ),
    "a bias there already": (KERNEL.replace("data=shifted)", "data=shifted, bias=most)"), "has a bias already"),
    "a scale for each partition": (KERNEL.replace("shifted)", "shifted, scale=most)"), "known to be a number"),
    "a narrow tile": (KERNEL.replace(SHIFTED, SHIFTED.replace("float32", "bfloat16")), "not declared float32"),
    "no activation": (KERNEL.replace(EXP, "nisa.tensor_copy(dst=weights, src=shifted)"), "no activation"),
    "another part": (KERNEL.replace("data=shifted)", "data=shifted[0:P, 0:N])"), "no activation that reads just"),
    "the row changes in between": (
        KERNEL.replace("        # e^x", "        nisa.memset(dst=row, value=0.0)\n        # e^x"), "changes what"
    ),
    "the maximum changes in between": (
        KERNEL.replace("        # e^x", "        nisa.memset(dst=most, value=0.0)\n        # e^x"), "changes what"
    ),
    "a number": (KERNEL.replace("operand0=most)", "operand0=2.0)"), "subtracts no tile"),
    "something added after": (
        KERNEL.replace("operand0=most)", "operand0=most, op1=nl.add, operand1=1.0)"), "does more than"
    ),
    "read in the next iteration": (
        KERNEL.replace(WEIGHTS, "").replace(f"        # e^x\n        {EXP}\n", "").replace(
            "        # stable", f"{WEIGHTS}        {EXP}\n        # stable"
        ),
        "comes before it is written",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    assert source != KERNEL
    assert sites(INTO, source) == {}
    check_refused(INTO, source, "shifted", reason)


def test_a_site_of_another_kernel_is_gone():
    with pytest.raises(SiteGone):
        applied(INTO, KERNEL, "other")


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Differences that one activation reads, or several, or none; scaled, in parts, with work in between."""
    tiles = ["a"]
    lines = ["nisa.dma_copy(dst=a, src=x)", "nisa.tensor_reduce(dst=m, op=nl.maximum, data=a, axis=1)"]
    for number in range(data.draw(st.integers(2, 5), label="steps")):
        source = data.draw(st.sampled_from(tiles))
        name = f"t{number}"
        lines.append(f"{name} = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)")
        part = data.draw(st.sampled_from(("", "[0:64, 0:32]")))
        scale = data.draw(st.sampled_from(("", ", op1=nl.multiply, operand1=0.5")))
        lines.append(
            data.draw(
                st.sampled_from(
                    (
                        f"nisa.tensor_scalar(dst={name}{part}, data={source}, op0=nl.subtract, operand0=m{scale})",
                        f"nisa.activation(dst={name}, op=nl.square, data={source}{part}, scale=0.5)",
                        f"nisa.activation(dst={name}, op=nl.square, data={source}{part})",
                        f"nisa.tensor_copy(dst={name}, src={source})",
                        f"nisa.tensor_tensor({name}, {source}, a, nl.add)\nnisa.tensor_copy(dst=m, src={name}[:, 0:1])",
                    )
                )
            )
        )
        tiles.append(name)
    lines.append(f"nisa.dma_copy(dst=out, src={tiles[-1]})")
    body = "\n".join(lines).replace("\n", "\n    ")
    source = (
        HEADER + "@nki.jit\ndef kernel(x):\n    out = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.shared_hbm)\n"
        "    a = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)\n"
        f"    m = nl.ndarray((64, 1), dtype=nl.float32, buffer=nl.sbuf)\n    {body}\n    return out\n"
    )
    x = random(64, 32)
    expected = run(source, x)

    for key in sites(INTO, source):
        made = applied(INTO, source, key)
        np.testing.assert_allclose(run(made, x), expected, rtol=1e-4, atol=1e-4)
        assert proved_on(made, source, x).equivalence.finding is Finding.HELD
        assert count(made, "tensor_scalar", x) == count(source, "tensor_scalar", x)
