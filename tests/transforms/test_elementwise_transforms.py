"""Moving work between engines, summing rows in the activation, reciprocals on Scalar: where, and where not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import AnalysisContext, SiteGone, parse_kernel
from accelopt_core.transforms.fuse_row_sum import FuseRowSum
from accelopt_core.transforms.move_engine import MoveEngine
from accelopt_core.transforms.reciprocal_on_scalar import ReciprocalOnScalar
from infra.tasks.seed_index import load_seed
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, random, run, sites, trace

MOVE, FUSE, RECIPROCAL = MoveEngine(), FuseRowSum(), ReciprocalOnScalar()

SOFTMAX = (
    HEADER
    + """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[0:128, 0:64])
    weights = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=weights, op=nl.exp, data=tile, scale=0.5)
    # one number per row
    total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=weights, axis=1)
    inverse = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=total)
    scaled = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=scaled, data=weights, op0=nl.multiply, operand0=inverse)
    twice = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=twice, data1=scaled, data2=scaled, op=nl.add)
    nisa.dma_copy(dst=out[0:128, 0:64], src=twice)
    return out
"""
)
OUTSIDE = SOFTMAX.replace("    total =", "    unused =").replace(
    "    # one",
    "    other = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)\n    # one",
).replace("    tile =", "    total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)\n    tile =")  # fmt: skip
"""The tile for the sum is made before everything else."""
X = random(128, 64)


def engines(source: str, opcode: str, *arrays) -> set[str]:
    return {t.engine.name for t in trace(source, *arrays).templates if t.opcode == opcode}


def test_moves_are_offered_to_every_engine_that_can_do_it():
    assert set(sites(MOVE, SOFTMAX)) == {"scaled@scalar", "scaled@gpsimd", "twice@gpsimd"}


def test_a_moved_instruction_runs_there_and_gives_the_same_numbers():
    for key in sites(MOVE, SOFTMAX):
        moved = applied(MOVE, SOFTMAX, key)
        np.testing.assert_allclose(run(moved, X), run(SOFTMAX, X), rtol=1e-6)
        opcode = "tensor_scalar" if key.startswith("scaled") else "tensor_tensor"
        assert engines(moved, opcode, X) == {key.partition("@")[2]}


def test_where_the_profile_is_known_work_moves_only_to_a_less_busy_engine():
    busy = {"vector_engine_active_time": 2e-3, "scalar_engine_active_time": 3e-3, "gpsimd_engine_active_time": 1e-3}

    found = MOVE.analyze(parse_kernel(SOFTMAX), AnalysisContext(fields=busy))

    assert {site.key for site in found} == {"scaled@gpsimd", "twice@gpsimd"}


def test_a_move_can_be_taken_back():
    there = applied(MOVE, SOFTMAX, "twice@gpsimd")

    assert "twice@vector" in sites(MOVE, there)
    assert engines(applied(MOVE, there, "twice@vector"), "tensor_tensor", X) == {"vector"}


PSUM_COPY = load_seed("matmul").kernel_source


def test_what_leaves_psum_moves_to_scalar_but_never_to_gpsimd():
    found = set(sites(MOVE, PSUM_COPY))

    assert found == {"lhs_t@scalar", "out@scalar"}
    lhs, rhs = random(128, 128), random(128, 512, seed=1)
    np.testing.assert_array_equal(run(applied(MOVE, PSUM_COPY, "out@scalar"), lhs, rhs), run(PSUM_COPY, lhs, rhs))


MOVE_REFUSALS = {
    "gpsimd has no path to psum": (PSUM_COPY, "out@gpsimd", "no path"),
    "it runs there already": (PSUM_COPY, "out@vector", "already"),
    "no such engine": (PSUM_COPY, "out@tensor", "none of"),
    "scalar combines no two tiles": (SOFTMAX, "twice@scalar", "combine two tiles"),
    "scalar only multiplies and adds": (
        SOFTMAX.replace("op0=nl.multiply", "op0=nl.maximum"),
        "scaled@scalar",
        "only multiplies and adds",
    ),
    "scalar reverses nothing": (
        SOFTMAX.replace("operand0=inverse", "operand0=inverse, reverse0=True"),
        "scaled@scalar",
        "only multiplies and adds",
    ),
    "engines differ on the operator": (
        SOFTMAX.replace("data2=scaled, op=nl.add", "data2=scaled, op=nl.divide"),
        "twice@gpsimd",
        "differ",
    ),
    "engines round integers differently": (
        SOFTMAX.replace("twice = nl.ndarray((128, 64), dtype=nl.float32", "twice = nl.ndarray((128, 64), nl.int32"),
        "twice@gpsimd",
        "integers",
    ),
    "operands by position": (
        SOFTMAX.replace("nisa.tensor_tensor(dst=twice, data1", "nisa.tensor_tensor(twice, data1"),
        "twice@gpsimd",
        "by position",
    ),
    "the module's name is not at hand": (
        SOFTMAX.replace("import nki.isa as nisa", "import nki.isa as nisa\nfrom nki.isa import tensor_tensor").replace(
            "nisa.tensor_tensor", "tensor_tensor"
        ),
        "twice@gpsimd",
        "not at hand",
    ),
}  # fmt: skip

FUSE_REFUSALS = {
    "not a sum": (SOFTMAX.replace("op=nl.add, data=weights", "op=nl.maximum, data=weights"), "can only add"),
    "negated": (SOFTMAX.replace("axis=1)", "axis=1, negate=True)"), "more than sum"),
    "another axis": (SOFTMAX.replace("axis=1)", "axis=2)"), "not over axis 1"),
    "part of the row": (SOFTMAX.replace("data=weights, axis", "data=weights[:, 0:32], axis"), "not over a whole tile"),
    "the row is written twice": (
        SOFTMAX.replace("    # one", "    nisa.memset(dst=weights[:, 0:1], value=0.0)\n    # one"),
        "not written by one activation",
    ),
    "the row is made by something else": (
        SOFTMAX.replace(
            "nisa.activation(dst=weights, op=nl.exp, data=tile, scale=0.5)", "nisa.tensor_copy(dst=weights, src=tile)"
        ),
        "not written by one activation",
    ),
    "the activation reduces already": (
        SOFTMAX.replace("scale=0.5", "scale=0.5, reduce_op=nl.add, reduce_res=other"),
        "reduces something already",
    ),
    "the sum is needed in between": (
        OUTSIDE.replace("    # one", "    nisa.tensor_copy(dst=other, src=total)\n    # one"),
        "total is used",
    ),
    "the sum is part of what the activation reads": (
        SOFTMAX.replace("data=tile, scale=0.5", "data=weights, bias=total")
        .replace("    total =", "    unused =")
        .replace("    weights =", "    total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)\n    weights ="),
        "total is used",
    ),
    "another part of the row": (
        SOFTMAX.replace("dst=weights", "dst=weights[:, 0:32]").replace(
            "op=nl.add, data=weights", "op=nl.add, data=weights[:, 32:64]"
        ),
        "not over a whole tile",
    ),
}


@pytest.mark.parametrize("case", MOVE_REFUSALS)
def test_a_move_is_refused(case):
    source, key, reason = MOVE_REFUSALS[case]

    check_refused(MOVE, source, key, reason)


@pytest.mark.parametrize("case", FUSE_REFUSALS)
def test_a_fusion_is_refused(case):
    source, reason = FUSE_REFUSALS[case]

    assert sites(FUSE, source) == {}
    check_refused(FUSE, source, "total", reason)


def test_a_fused_sum_is_the_same_sum_without_an_instruction_of_its_own():
    fused = applied(FUSE, SOFTMAX, "total")

    assert count(fused, "tensor_reduce", X) == 0
    assert "# one number per row" in fused
    np.testing.assert_allclose(run(fused, X), run(SOFTMAX, X), rtol=1e-6)


ROW_SUMS = {
    "made before": OUTSIDE,
    "keepdims": SOFTMAX.replace("axis=1)", "axis=1, keepdims=True)"),
    "counted from the end": SOFTMAX.replace("axis=1)", "axis=(-1,))"),
    "by position": SOFTMAX.replace("(dst=weights, op=nl.exp, data=tile,", "(weights, nl.exp, tile,").replace(
        "(dst=total, op=nl.add, data=weights, axis=1)", "(total, nl.add, weights, 1)"
    ),
    "part of a row into part of a tile": SOFTMAX.replace(
        "nisa.activation(dst=weights, op", "nisa.tensor_copy(dst=weights, src=tile)\n"
        "    nisa.activation(dst=weights[0:128, 0:32], op",
    )
    .replace("data=tile, scale", "data=tile[0:128, 0:32], scale")
    .replace("dst=total, op=nl.add, data=weights,", "dst=total[:, 0:1], op=nl.add, data=weights[0:128, 0:32],"),
}  # fmt: skip


@pytest.mark.parametrize("case", ROW_SUMS)
def test_a_row_sum_is_fused_in_any_spelling(case):
    source = ROW_SUMS[case]

    fused = applied(FUSE, source, "total")

    assert count(fused, "tensor_reduce", X) == 0
    np.testing.assert_allclose(run(fused, X), run(source, X), rtol=1e-6)


SQUARED = "nisa.tensor_tensor(dst=weights, data1=tile, data2=tile, op=nl.multiply, engine=nisa.engine.gpsimd)"


def squares(by: str = SQUARED) -> str:
    source = SOFTMAX.replace("nisa.activation(dst=weights, op=nl.exp, data=tile, scale=0.5)", by)
    assert by in source
    return source.replace("    out =", "    assert x.dtype == nl.float32\n    out =")


def test_a_tile_times_itself_is_an_activation_that_can_sum():
    source = squares()

    fused = applied(FUSE, source, "total")

    assert (count(fused, "tensor_reduce", X), count(fused, "tensor_tensor", X)) == (0, 1)
    assert "op=nl.square" in fused and "# one number per row" in fused
    np.testing.assert_allclose(run(fused, X), run(source, X), rtol=1e-6)
    assert proved_on(fused, source, X).equivalence.finding is Finding.HELD


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (squares(SQUARED.replace("data2=tile", "data2=tile[:, :]")), "not written by one activation"),
        (squares(SQUARED.replace("multiply", "add")), "not written by one activation"),
        (squares().replace("    assert x.dtype == nl.float32\n", ""), "floating-point"),
    ],
    ids=["not shown to be itself", "not a product", "any dtype"],
)
def test_what_is_no_square_of_floating_point_numbers_is_not_summed_so(source, reason):
    check_refused(FUSE, source, "total", reason)


def test_a_reciprocal_moves_to_scalar_with_the_same_numbers():
    assert set(sites(RECIPROCAL, SOFTMAX)) == {"inverse"}

    moved = applied(RECIPROCAL, SOFTMAX, "inverse")

    assert count(moved, "reciprocal", X) == 0
    np.testing.assert_allclose(run(moved, X), run(SOFTMAX, X), rtol=1e-6)


RECIPROCAL_REFUSALS = {
    "more than a reciprocal": (
        SOFTMAX.replace("reciprocal(dst=inverse, data", "reciprocal(dst=inverse, name='r', data"),
        "more than dst",
    ),
    "unknown dimensions": (
        SOFTMAX.replace("data=total)\n    scaled", "data=x[0:128, 0:1])\n    scaled"),
        "cannot be told",
    ),
    "the module's name is not at hand": (
        SOFTMAX.replace("nisa.reciprocal", "reciprocal").replace("\n@nki", "\nfrom nki.isa import reciprocal\n@nki"),
        "not at hand",
    ),
}


@pytest.mark.parametrize(("source", "reason"), RECIPROCAL_REFUSALS.values(), ids=RECIPROCAL_REFUSALS)
def test_a_reciprocal_is_refused(source, reason):
    assert sites(RECIPROCAL, source) == {}
    check_refused(RECIPROCAL, source, "inverse", reason)


@pytest.mark.parametrize(
    ("transform", "key"),
    [(MOVE, "none@scalar"), (FUSE, "none"), (RECIPROCAL, "none")],
    ids=["move", "fuse", "reciprocal"],
)
def test_a_site_of_another_kernel_is_gone(transform, key):
    with pytest.raises(SiteGone):
        applied(transform, SOFTMAX, key)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_every_site_of_a_random_elementwise_kernel_keeps_the_result(data):
    """Chains of elementwise instructions with row sums and reciprocals: same numbers after any two changes."""
    lines = ["t0 = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)", "nisa.dma_copy(dst=t0, src=x[0:64, 0:32])"]
    for n in range(1, data.draw(st.integers(2, 5))):
        before = f"t{data.draw(st.integers(0, n - 1))}"
        make = f"t{n} = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)"
        step = data.draw(st.sampled_from(["scale", "shift", "add", "copy", "row"]))
        lines.append(make)
        if step == "scale":
            lines.append(f"nisa.tensor_scalar(dst=t{n}, data={before}, op0=nl.multiply, operand0=0.5)")
        elif step == "shift":
            lines.append(f"nisa.tensor_scalar(dst=t{n}, data={before}, op0=nl.add, operand0=0.25)")
        elif step == "add":
            lines.append(f"nisa.tensor_tensor(dst=t{n}, data1={before}, data2=t{n - 1}, op=nl.add)")
        elif step == "copy":
            lines.append(f"nisa.tensor_copy(dst=t{n}, src={before})")
        else:
            lines[-1:] = [
                f"e{n} = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)",
                f"nisa.activation(dst=e{n}, op=nl.exp, data={before}, scale=0.1)",
                f"s{n} = nl.ndarray((64, 1), dtype=nl.float32, buffer=nl.sbuf)",
                f"nisa.tensor_reduce(dst=s{n}, op=nl.add, data=e{n}, axis=1)",
                f"r{n} = nl.ndarray((64, 1), dtype=nl.float32, buffer=nl.sbuf)",
                f"nisa.reciprocal(dst=r{n}, data=s{n})",
                make,
                f"nisa.tensor_scalar(dst=t{n}, data=e{n}, op0=nl.multiply, operand0=r{n})",
            ]
        last = n
    lines += [
        "out = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.shared_hbm)",
        f"nisa.dma_copy(dst=out[0:64, 0:32], src=t{last})",
        "return out",
    ]
    source = HEADER + "@nki.jit\ndef kernel(x):\n    " + "\n    ".join(lines) + "\n"
    x = random(64, 32, seed=3)
    expected = run(source, x)
    for _ in range(2):
        found = [(t, key) for t in (MOVE, FUSE, RECIPROCAL) for key in sorted(sites(t, source))]
        if found:
            source = _apply_one(data, found, source)
            np.testing.assert_allclose(run(source, x), expected, rtol=1e-5, atol=1e-6)


def _apply_one(data, found, source: str) -> str:
    transform, key = found[data.draw(st.integers(0, len(found) - 1), label="site")]
    return applied(transform, source, key)
