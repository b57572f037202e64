"""A kernel as it is at its task's shapes: the same program there, and none at any other."""

from __future__ import annotations

import io
import tokenize

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.toolchain import ArgumentSpec, ConstantArgument, DtypeArgument, TensorArgument
from accelopt_core.transforms.base import AnalysisContext, SiteGone, parse_kernel
from accelopt_core.transforms.normalize import NORMALIZE
from tests.transforms.running import HEADER, applied, kernel_of, random, run, trace

X = random(256, 96)
TENSOR = TensorArgument((256, 96), "float32")

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x, scale=None, steps=(1, 2), rows=128):
    N, W = x.shape
    step, wide = steps
    out = nl.ndarray((N, W), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range((N + rows - 1) // rows):
        start = i * rows
        size = min(rows, N - start)
        tile = nl.ndarray((rows, W), dtype=x.dtype, buffer=nl.sbuf)
        # the last may be shorter
        if size < rows:
            nisa.memset(dst=tile, value=0.0)
        nisa.dma_copy(dst=tile[0:size, 0:W], src=x[start : start + size, 0:W])
        if scale is not None:  # by a tensor
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=scale)
        elif step == 1:
            # doubled
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        else:
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=3.0)
        factor = 0.5 if W > 64 else 0.25
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=factor)
        if i == 0:
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=out[start : start + size, 0:W], src=tile[0:size, 0:W])
    return out
"""
)


def keys(source: str, *presets: tuple[ArgumentSpec, ...]) -> list[str]:
    context = AnalysisContext(arguments=presets)
    return [site.key for site in NORMALIZE.analyze(parse_kernel(source), context) if "if:" in site.key]


def taken(source: str, *presets: tuple[ArgumentSpec, ...]) -> str:
    (key,) = keys(source, *presets)
    made = applied(NORMALIZE, source, key)
    assert keys(made, *presets) == [], "again there is nothing to do"
    return made


def test_branches_go_and_the_program_stays():
    made = taken(KERNEL, (TENSOR,))

    np.testing.assert_array_equal(run(made, X), run(KERNEL, X))
    assert np.array_equal(trace(made, X).template_ids, trace(KERNEL, X).template_ids)
    body = made.partition("def kernel")[2]
    assert body.count("if ") == 1 and "else" not in body and "if i == 0:" in body
    said = {token.string for token in tokenize.generate_tokens(io.StringIO(made).readline)}
    assert {"# the last may be shorter", "# doubled"} <= said
    loops, _, _ = body.partition("for i in")
    for stated in ("scale is None", "steps == (1, 2)", "rows == 128", "W > 64"):
        assert f"assert {stated}, " in loops, made
    assert "size >= rows" not in body and "None is None" not in body, "they hold whatever the shapes are"


@pytest.mark.parametrize(
    ("x", "others"),
    [(X[:200], {}), (X[:, :32], {}), (X, {"steps": (2, 2)}), (X, {"scale": 0.5}), (X, {"rows": 64})],
    ids=["a shorter tile", "fewer columns", "another step", "a scale", "fewer rows"],
)
def test_what_it_was_not_made_for_is_refused(x, others):
    import nki

    nki.simulate(kernel_of(KERNEL))(x, **others)
    with pytest.raises(AssertionError, match="made for shapes where this holds|must be a whole one"):
        nki.simulate(kernel_of(taken(KERNEL, (TENSOR,))))(x, **others)


def test_what_differs_between_the_presets_stays_a_branch():
    narrow = (TensorArgument((256, 32), "float32"), ConstantArgument(None), ConstantArgument((2, 2)))
    made = taken(KERNEL, (TENSOR,), narrow)
    for source in (X, X[:, :32]):
        np.testing.assert_array_equal(run(made, source), run(KERNEL, source))
    assert "if W > 64" in made and "step == 1" in made and "else:" in made and "scale is not None" not in made


def test_of_an_unknown_task_nothing_is_taken():
    assert keys(KERNEL) == []


def test_a_dtype_that_is_passed_is_stated():
    source = KERNEL.replace("scale=None", "kind, scale=None").replace(
        "dtype=x.dtype, buffer=nl.sbuf", "dtype=kind, buffer=nl.sbuf"
    )
    made = taken(source, (TENSOR, DtypeArgument("float32")))
    assert 'assert kind == nl.float32, "made' in made and "dtype=nl.float32, buffer=nl.sbuf" in made


@pytest.mark.parametrize(
    "key", ["kernel if:1", "kernel if:x+", "kernel for:", "kernel x=float32 if:1+", "kernel whole if:1+"]
)
def test_there_is_no_such_site(key):
    with pytest.raises(SiteGone):
        applied(NORMALIZE, KERNEL, key)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_a_wrong_guess_is_refused_and_a_right_one_is_the_same_program(data):
    """Whatever the form's name says of each condition: no kernel that computes something else."""
    ways = {at: data.draw(st.sampled_from("+-"), str(at)) for at in range(5) if data.draw(st.booleans(), f"{at}?")}
    key = "kernel if:" + ",".join(f"{at}{way}" for at, way in ways.items()) if ways else "kernel"
    source = KERNEL if ways else KERNEL.replace("range((N + rows - 1) // rows)", "range(0, (N + rows - 1) // rows, 1)")
    made = applied(NORMALIZE, source, key)
    rows, columns = data.draw(st.sampled_from((128, 200, 256)), "N"), data.draw(st.sampled_from((32, 96)), "W")
    x = random(rows, columns)
    try:
        came = run(made, x)
    except AssertionError as error:
        assert "made for shapes where this holds" in str(error)
        return
    np.testing.assert_array_equal(came, run(KERNEL, x))


def test_a_tile_is_not_none_and_a_loop_with_a_condition_ends():
    body = """
    group = W
    while W % group or group > 40:
        group -= 1
    bias = None
    if group < 40:
        bias = nl.ndarray((128, W), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=bias, value=1.0)
    for i in range(2):
        tile = nl.ndarray((128, W), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i * 128 : (i + 1) * 128, 0:W])
        if bias is not None:
            nisa.tensor_tensor(dst=tile, data1=tile, data2=bias, op=nl.add)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, 0:W], src=tile)
    return out
"""
    head = "    N, W = x.shape\n    out = nl.ndarray((N, W), dtype=x.dtype, buffer=nl.shared_hbm)\n"
    source = f"{HEADER}\n@nki.jit\ndef kernel(x):\n{head}{body.lstrip(chr(10))}"
    made = taken(source, (TENSOR,))
    np.testing.assert_array_equal(run(made, X), run(source, X))
    assert "assert group < 40" in made and "if " not in made.partition("def kernel")[2]
