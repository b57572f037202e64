"""The measured kernels of `benchmarks/data/trn2_device`: each computes what it should, and each row has its program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from benchmarks import device_heads as heads
from benchmarks import device_lm_head as lm_head
from benchmarks import device_mamba as mamba
from benchmarks import device_matmuls as matmuls
from benchmarks import device_rows
from benchmarks import device_scoring as scoring
from benchmarks import device_small as small
from benchmarks import device_tasks as tasks
from nki_sim.errors import CapacityExceeded, NkiError
from nki_sim.execution.executor import execute
from nki_sim.program.program import Program, Template
from tests.slow import without

IN_FLOAT32 = tuple(f"{name}_fp32" for name in ("blocked", "ladder", "attention"))
FAMILIES = (*IN_FLOAT32, "qwen_bf16", "kda_beta1", "streams", "token_scoring", "lm_head")

K, M, N = 512, 256, 1024
HALF, LENGTH = 64, 2048
CHANNELS, STATES = 256, 4

EXACT, ROUNDED = 1e-5, 1e-2
"""Relative error of float32, and with bfloat16 in between."""


def normal(*shapes: tuple[int, int] | tuple[int, int, int]) -> list[np.ndarray]:
    random = np.random.default_rng(7)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def error(result: np.ndarray, expected: np.ndarray) -> float:
    result = np.asarray(result, np.float64)
    assert result.shape == expected.shape
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    "make",
    [
        partial(matmuls.blocked, K, M, N, 1, 2, 2),
        partial(matmuls.blocked, K, M, N, 2, 1, 4),
        partial(matmuls.tiled, K, M, N),
        partial(matmuls.tiled, K, M, N, row_resident=True),
        partial(matmuls.square_blocks, K, M, N, 2, 2),
    ],
)
def test_a_product_of_a_transposed_left_side(make: Callable[[], Program]) -> None:
    a_t, b = normal((K, M), (K, N))
    assert error(execute(make(), [a_t, b])[0], a_t.T @ b) < EXACT


@pytest.mark.parametrize(
    ("row_tiles", "limbs", "tolerance"),
    [(1, "float32", EXACT), (2, "float32", EXACT), (2, "split", EXACT), (2, "bfloat16", ROUNDED)],
)
def test_matmul(row_tiles: int, limbs: str, tolerance: float) -> None:
    lhs, rhs = normal((M, K), (K, N))
    assert error(execute(tasks.matmul(M, K, N, row_tiles, limbs), [lhs, rhs])[0], lhs @ rhs) < tolerance


@pytest.mark.parametrize(
    ("tiles_ahead", "wide", "batch_block", "dtype"),
    [
        (1, 512, 1, "float32"),
        (1, 1024, 1, "float32"),
        (2, 1024, 1, "float32"),
        (4, 1024, 2, "float32"),
        (4, 1024, 4, "float32"),
        (1, 512, 1, "bfloat16"),
    ],
)
def test_bmm(tiles_ahead: int, wide: int, batch_block: int, dtype: str) -> None:
    lhs, rhs = normal((4, 512, 64), (4, 64, 1024))
    program = tasks.bmm(4, 512, 64, 1024, tiles_ahead, wide, batch_block, dtype)
    assert error(execute(program, [lhs, rhs])[0], lhs @ rhs) < (EXACT if dtype == "float32" else ROUNDED)


@pytest.mark.parametrize(
    "make",
    [
        partial(tasks.rope_baseline, HALF, LENGTH),
        partial(tasks.rope_halves, HALF, LENGTH, 512),
        partial(tasks.rope_halves, HALF, LENGTH, 1024, buffers=2),
        partial(tasks.rope_packed, HALF, LENGTH, 256),
        partial(tasks.rope_packed, HALF, LENGTH, 128, on_tensor=True),
    ],
)
def test_rope(make: Callable[[], Program]) -> None:
    x, cos, sin = normal((2 * HALF, LENGTH), (HALF, LENGTH), (HALF, LENGTH))
    low, high = x[:HALF], x[HALF:]
    expected = np.concatenate([low * cos - high * sin, low * sin + high * cos])
    assert error(execute(make(), [x, cos, sin])[0], expected) < EXACT


@pytest.mark.parametrize(
    "make",
    [
        partial(mamba.mamba_baseline, CHANNELS, LENGTH, STATES),
        partial(mamba.mamba, CHANNELS, LENGTH, STATES, LENGTH, buffers=0),
        partial(mamba.mamba, CHANNELS, LENGTH, STATES, 256),
        partial(mamba.mamba, CHANNELS, LENGTH, STATES, 1024),
        partial(mamba.mamba_shared, CHANNELS, LENGTH, STATES, 512),
    ],
)
def test_mamba(make: Callable[[], Program]) -> None:
    shapes = (CHANNELS, LENGTH), (CHANNELS, LENGTH), (CHANNELS, STATES), (STATES, LENGTH), (STATES, LENGTH)
    delta, u, a, b, c = (0.05 * values for values in normal(*shapes))
    hidden, expected = np.zeros((CHANNELS, STATES)), np.empty((CHANNELS, LENGTH))
    for at in range(LENGTH):
        step = delta[:, at : at + 1].astype(np.float64)
        hidden = np.exp(step * a) * hidden + step * u[:, at : at + 1] * b[:, at]
        expected[:, at] = hidden @ c[:, at]
    assert error(execute(make(), [delta, u, a, b, c])[0], expected) < EXACT


SHAPES = [(512, 256), (1024, 64)]


@pytest.mark.parametrize("make", [small.copy_rows, small.copy_packed])
def test_copies(make: Callable[..., Program], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "PACKED_ELEMENTS", 384)  # so that transfers end within a tensor
    sources = [values.astype(ml_dtypes.bfloat16) for values in normal(*SHAPES)]
    for result, source in zip(execute(make(SHAPES), sources), sources):
        np.testing.assert_array_equal(result, source)


def test_rms() -> None:
    tensors = [values.astype(ml_dtypes.bfloat16) for values in normal(*SHAPES, (1, 256), (1, 64))]
    for result, source, weight in zip(execute(small.rms(SHAPES), tensors), tensors[:2], tensors[2:]):
        x = source.astype(np.float64)
        expected = x / np.sqrt((x * x).mean(1, keepdims=True)) * weight.astype(np.float64)
        assert error(result, expected) < ROUNDED


@pytest.mark.parametrize("form", small.FORMS)
def test_attention(form: int) -> None:
    q, k, v = normal((96, 32), (96, 32), (96, 32))
    weights = np.exp(q.astype(np.float64) @ k.T / np.sqrt(32))
    expected = weights / weights.sum(1, keepdims=True) @ v
    assert error(execute(small.attention(form, 96, 32), [q, k, v])[0], expected) < (
        ROUNDED if small.FORMS[form].narrow else EXACT
    )


def test_an_unknown_form_of_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="attention form 3: one of 0, 1, 2, 5, 6"):
        small.attention(3, 96, 32)


def test_every_measured_row_is_there_once() -> None:
    """All but the compiler's own matmuls, settings that a kernel's own assertion rejects, and a wrong result."""
    expected = {
        row["id"]
        for family in FAMILIES
        for row in device_rows.read(f"{family}.csv")
        if "assertion" not in row.get("error_kind", "") and "wrong result" not in row.get("error_kind", "")
    }
    ids = [row.id for row in device_rows.rows()]
    assert len(ids) == len(set(ids))
    assert set(ids) == expected


@pytest.mark.parametrize("family", without("blocked_fp32", "kda_beta1", of=FAMILIES))
def test_every_row_has_a_program_or_is_refused_for_space(family: str) -> None:
    for row in device_rows.rows():
        if row.family != family:
            continue
        assert (row.measured_us is None) == bool(row.refused), row.id
        try:
            program = row.make()
        except NkiError as refusal:
            assert isinstance(refusal, CapacityExceeded), (row.id, refusal)
            assert family == "blocked_fp32", row.id
            continue
        assert len(program.outputs) >= 1, row.id


def test_only_the_runtimes_figures_hold_the_launch() -> None:
    for row in device_rows.rows():
        families = ("streams", "attention_fp32", "attention_heads", "qwen_bf16", "token_scoring")
        assert row.with_launch == (row.family in families), row.id


def test_a_tasks_figure_is_doubled_and_says_how_far_off_it_may_be() -> None:
    published = {row["id"]: float(row["published_us"]) for row in device_rows.read("kda_beta1.csv")}
    for row in device_rows.task_rows():
        assert row.measured_us == pytest.approx(2 * published[row.id], rel=1e-3)
        assert row.tolerance == (0.1 if row.grid == "kda_bmm" else 0.02)


def test_programs_move_what_their_descriptions_say() -> None:
    """Bytes and products of whole kernels, counted by hand from the sources' loops."""
    by_id = {row.id: row.make for row in device_rows.task_rows()}
    matrix = 4 * 4096 * 5120, 4 * 5120 * 12288, 4 * 4096 * 12288
    identity = 4 * 128 * 128
    for row, row_tiles, products in (("K001", 1, 1), ("K003", 4, 1), ("K005", 4, 3)):
        moved, multiplied = _moved_and_multiplied(by_id[row]())
        assert moved == matrix[0] + matrix[1] * 32 // row_tiles + matrix[2] + identity, row
        assert multiplied == products * 32 * 24 * 40 + 32 * 40, row
    rope = 4 * 262144 * (128 + 64 + 64 + 128)
    for row, extra in (("K015", 0), ("K016", 0), ("K020", 0), ("K023", identity)):
        assert _moved_and_multiplied(by_id[row]())[0] == rope + extra, row
    broadcasts = 2 * 14 * 16
    assert _moved_and_multiplied(by_id["K030"]())[1] == 2 * broadcasts
    assert _moved_and_multiplied(by_id["K034"]())[1] == broadcasts


def _moved_and_multiplied(program: Program) -> tuple[int, int]:
    """Bytes of all transfers, and products (transposes among them)."""
    moved = multiplied = 0
    for template, count in _counted(program):
        if template.opcode == "dma_copy":
            moved += template.operands[0].nbytes * count
        multiplied += count if template.opcode == "nc_matmul" else 0
    return moved, multiplied


def _counted(program: Program) -> list[tuple[Template, int]]:
    counts = np.bincount(program.template_ids, minlength=len(program.templates)).tolist()
    return list(zip(program.templates, counts))


def test_rows_on_two_cores_have_a_program_for_each_with_half_of_the_work() -> None:
    by_id = {row.id: row for row in device_rows.rows()}
    for program, nbytes in ((by_id["P003"].make(), 2 * 64 * 8192), (by_id["N036"].make(), 4 * 96 * 4 * 32)):
        (peer,) = program.peers
        assert len(peer) == len(program)
        loads = [t for t in program.templates if t.opcode == "dma_copy" and t.operands[1].elements >= 64 * 32]
        assert {t.operands[1].elements * t.operands[1].dtype.itemsize for t in loads} >= {nbytes}


@pytest.mark.parametrize("identity", ["G001", "G003"])
def test_the_head_moves_the_matrix_and_multiplies_it_once(identity: str) -> None:
    """4,128 transfers and 8,224 products a core, and 149 of 32 KiB a partition with 19,072 products."""
    program = {row.id: row for row in device_rows.lm_head_rows()}[identity].make()
    names = [template.opcode for template in program.templates]
    counts = np.bincount(program.peers[0].template_ids, minlength=len(program.peers[0].templates))
    products = sum(int(n) for n, t in zip(counts, program.peers[0].templates) if t.opcode == "nc_matmul")
    assert "nc_matmul" in names
    assert products == {"G001": 257 * 32, "G003": 149 * 4 * 32}[identity] + 1
    large = sum(
        int(n)
        for n, t in zip(counts, program.peers[0].templates)
        if t.opcode == "dma_copy" and t.operands[0].partitions == 128 and t.operands[0].free_size >= 64
    )  # fmt: skip
    assert large == {"G001": 129 * 32, "G003": 149}[identity]


@pytest.mark.parametrize("kernel", scoring.KERNELS)
@pytest.mark.parametrize("wide", [32, 48, 128])
def test_tokens_get_their_log_probability_and_the_entropy(kernel: str, wide: int) -> None:
    random = np.random.default_rng(3)
    logits = random.standard_normal((16, 128)).astype(ml_dtypes.bfloat16)
    chosen = random.integers(0, 128, (16, 1)).astype(np.int32)
    chances, entropies = execute(scoring.KERNELS[kernel](16, 128, 4, wide), [logits, chosen])
    exact = logits.astype(np.float64)
    log = exact - exact.max(axis=1, keepdims=True)
    log -= np.log(np.exp(log).sum(axis=1, keepdims=True))
    assert chances == pytest.approx(np.take_along_axis(log, chosen, 1), rel=1e-3, abs=1e-4)
    assert entropies == pytest.approx(-(np.exp(log) * log).sum(axis=1, keepdims=True), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("kernel", heads.KERNELS)
def test_every_head_attends_for_itself(kernel: str) -> None:
    random = np.random.default_rng(4)
    q, k, v = (random.standard_normal((32, 8, 16)).astype(np.float32) for _ in range(3))
    (found,) = execute(heads.KERNELS[kernel](32, 8, 16), [q, k, v])
    for head in range(8):
        scores = np.exp(q[:, head] @ k[:, head].T / 4.0)
        assert found[:, head] == pytest.approx(scores @ v[:, head] / scores.sum(axis=1, keepdims=True), abs=1e-4)


@pytest.mark.parametrize("packed", [False, True])
def test_the_head_finds_the_largest_logit(packed: bool) -> None:
    hidden, vocabulary = 256, 1920 if packed else 2048
    random = np.random.default_rng(5)
    table, weights, matrix = (
        random.standard_normal(shape).astype(ml_dtypes.bfloat16)
        for shape in ((vocabulary, hidden), (1, hidden), (hidden, vocabulary))
    )
    token = np.array([[7]], np.int32)
    # the rows of the matrix lie as the normed tile has them: partition p holds one run of either half
    row = table[7].astype(np.float64)
    normed = row / np.sqrt((row**2).mean() + 1e-6) * weights[0].astype(np.float64)
    runs = normed.reshape(2, 128, 1).transpose(1, 0, 2).reshape(128, 2)
    logits = sum(runs[:, at] @ matrix[at * 128 : at * 128 + 128].astype(np.float64) for at in range(2))
    if packed:
        filled_up = np.concatenate((matrix, np.zeros((hidden, 128), matrix.dtype)), axis=1)
        blocks = filled_up.reshape(2, 128, 2, 2, 512).transpose(2, 3, 1, 0, 4)
        given, program = blocks.reshape(2, 2, 128, 1024), lm_head.packed(hidden, vocabulary, 2)
    else:
        given, program = matrix, lm_head.streamed(hidden, vocabulary, 593)
    (number,) = execute(program, [token, table, weights, given])
    assert logits[int(number[0, 0])] == pytest.approx(logits.max(), rel=0.02)
