"""What every transform of the catalogue must have: a new one is not in the house before it is in this table.

Where it applies, what it refuses, that random kernels compute the same afterwards, and that the gain it promises is
the one that is then judged.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

from accelopt_core.candidate import Candidate
from accelopt_core.catalogue.nodes import LookAhead
from accelopt_core.catalogue.proposer import catalogue_proposer
from accelopt_core.catalogue.rewrites import rewrites_in
from accelopt_core.evaluation import Measured
from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.languages.nki.language import NKI
from accelopt_core.ports import EvaluationRequest
from accelopt_core.proposer import NothingToPlan, RoundContext
from accelopt_core.task import ShapePreset, Task
from accelopt_core.transforms.registry import STEPS, TRANSFORMS, transform_named
from infra.prediction.predictor import Predictor
from infra.targets.local import LocalTarget
from infra.tasks.seed_index import load_seed
from tests.transforms import test_accumulate_in_psum as psum
from tests.transforms import test_block_tiles as block
from tests.transforms import test_broadcast_by_dma as broadcast
from tests.transforms import test_contiguous_transfers as contiguous
from tests.transforms import test_drop_copy as drop
from tests.transforms import test_drop_memset as memset
from tests.transforms import test_elementwise_transforms as elementwise
from tests.transforms import test_evacuate_psum as evacuate
from tests.transforms import test_fill_partitions as fill
from tests.transforms import test_fuse_elementwise as fuse
from tests.transforms import test_group_loads as loads
from tests.transforms import test_group_transposes as group
from tests.transforms import test_hoist_invariant_loads as hoist
from tests.transforms import test_interchange_loops as interchange
from tests.transforms import test_keep_on_chip as keep
from tests.transforms import test_load_rows_once as once
from tests.transforms import test_merge_iterations as merge
from tests.transforms import test_retile as retile
from tests.transforms import test_rotate_buffers as rotate
from tests.transforms import test_rows_on_partitions as partitions
from tests.transforms import test_scale_after_product as scale
from tests.transforms import test_share_array as share
from tests.transforms import test_split_columns as split
from tests.transforms import test_split_rows as rows
from tests.transforms import test_staged_stores as staged
from tests.transforms import test_subtract_in_activation as subtract
from tests.transforms import test_transpose_by_dma as by_dma
from tests.transforms import test_transpose_by_pe as by_pe
from tests.transforms import test_widen_dma_rows as widen
from tests.transforms import test_widen_products as products
from tests.transforms.running import applied

ROOT = Path(__file__).resolve().parents[2]
AGREEMENT = 0.25


@dataclass(frozen=True)
class Contract:
    applies: Callable[..., None]
    """A test: it is offered where it should be, and does what it says."""
    refusals: Sized
    """A table of kernels it refuses by name, which its own tests go through."""
    refused: Callable[..., None]
    """The test that goes through it: each is refused by name, not offered, and told to whoever listens."""
    equivalent: Callable[..., None]
    """A hypothesis test that executes what came of random kernels."""
    task: str
    """One of the shipped tasks, whose small shape it makes faster ..."""
    kernel: Callable[[str], str] = lambda seed: seed
    """... beginning with this variant of its kernel ..."""
    opens: str | None = None
    """... by itself, or by what it makes legal for this transform."""
    gains: bool = True
    """False: no shipped kernel gets faster by it, this one neither. On GpSimd, where it would open the way to, work now
    waits for the descriptors that software writes there."""


SHAPES = {
    "mamba": {"M": 1024, "C": 128, "S": 4},
    "adamw": {"M": 128, "N": 1024},
    "bmm": {"B": 1, "M": 256, "K": 64, "N": 8192},
    "matmul": {"M": 256, "K": 6144, "N": 1024},
    "rope_single_freq_apply": {"B": 1, "H": 1, "N": 2048, "D": 128},
    "silu": {"M": 128, "N": 7168},
    "matmul_add_rmsnorm": {"M": 512, "K": 8192, "N": 512},
}
"""Instead of a task's small shape, where a smaller one shows the gain as well, or only a larger one does."""


def with_one_buffer(silu: str) -> str:
    """The tiles are made once, before the loops."""
    made = [line for line in silu.splitlines(True) if line.startswith("            ") and "nl.ndarray" in line]
    assert len(made) == 2
    for line in made:
        silu = silu.replace(line, "")
    before, loops, after = silu.partition("    for m in ")
    return before + "".join(line[8:] for line in made) + "\n" + loops + after


def turned_before_the_loop(bmm: str) -> str:
    """The left tile is loaded and turned once for all of N."""
    loop = "            for n in range(N // TILE_N):\n"
    before, _, after = bmm.partition(loop)
    turning, blank, rest = after.partition("\n\n")
    return before + turning.replace("\n    ", "\n")[4:] + "\n" + loop + rest


def in_narrow_tiles(bmm: str) -> str:
    """The left tile is turned once, and 128 columns are multiplied by it at a time."""
    assert "TILE_N = 512\n" in bmm
    return turned_before_the_loop(bmm).replace("TILE_N = 512\n", "TILE_N = 128\n")


def with_a_copy(adamw: str) -> str:
    """The denominator is copied to a second tile, and that one is inverted."""
    inverted = "            nisa.reciprocal(dst=inverse, data=denominator)\n"
    assert inverted in adamw
    made = "            again = nl.ndarray((rows, TILE_N), dtype=nl.float32, buffer=nl.sbuf)\n"
    copied = "            nisa.tensor_copy(dst=again, src=denominator)\n"
    return adamw.replace(inverted, made + copied + inverted.replace("data=denominator", "data=again"))


def summed_in_sbuf(matmul: str) -> str:
    """Each product is added to a tile of SBUF by the Vector engine."""
    whole = "            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)\n"
    product = "                nisa.nc_matmul(dst=acc, stationary=lhs_t, moving=rhs_tile)\n"
    assert whole in matmul and product in matmul
    return matmul.replace(
        whole, whole.replace("acc", "total").replace("psum", "sbuf") + "            nisa.memset(dst=total, value=0.0)\n"
    ).replace(
        product,
        "    " + whole + product + "                nisa.tensor_tensor(dst=total, data1=total, data2=acc, op=nl.add)\n",
    ).replace("src=acc)", "src=total)")  # fmt: skip


def piece_by_piece(silu: str) -> str:
    """The activation works on 32 columns at a time."""
    whole = "            nisa.activation(dst=out, op=nl.silu, data=tile)\n"
    assert whole in silu
    part = "[:, c * 32 : (c + 1) * 32]"
    return silu.replace(
        whole,
        "            for c in range(TILE_N // 32):\n"
        f"                nisa.activation(dst=out{part}, op=nl.silu, data=tile{part})\n",
    )


def set_before_it_is_loaded(silu: str) -> str:
    """As many kernels do, in case a tile is not full."""
    load = "            nisa.dma_copy(dst=tile, "
    assert silu.count(load) == 1
    return silu.replace(load, "            nisa.memset(dst=tile, value=0.0)\n" + load)


def in_windows(silu: str) -> str:
    """Sixteen rows at a time, with the next sixteen at hand, of which nothing is added."""
    before, _, after = silu.partition("    for m in ")
    windows = """
        {tile} = nl.ndarray((16, N), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst={tile}, src=x[m * 16 + {further} : m * 16 + {further} + 16, 0:N])
"""
    assert after
    return (
        before.replace("TILE_M = 128\n", "TILE_M = 16\n")
        + "    for m in range(M // TILE_M - 1):"
        + windows.format(tile="tile", further=0)
        + windows.format(tile="near", further=16)[1:]
        + "        out = nl.ndarray((16, N), dtype=result.dtype, buffer=nl.sbuf)\n"
        "        nisa.activation(dst=out, op=nl.silu, data=tile)\n"
        "        nisa.scalar_tensor_tensor(\n"
        "            dst=out, data=near, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1=out\n"
        "        )\n"
        "        nisa.dma_copy(dst=result[m * 16 : m * 16 + 16, 0:N], src=out)\n"
        "    last = nl.ndarray((16, N), dtype=x.dtype, buffer=nl.sbuf)\n"
        "    nisa.dma_copy(dst=last, src=x[M - 16 : M, 0:N])\n"
        "    nisa.activation(dst=last, op=nl.silu, data=last)\n"
        "    nisa.dma_copy(dst=result[M - 16 : M, 0:N], src=last)\n"
        "    return result\n"
    )


def by_way_of_hbm(silu: str) -> str:
    """What is loaded is stored to a buffer of the kernel's own, and loaded again."""
    loaded = "n * TILE_N : (n + 1) * TILE_N])\n"
    assert silu.count(loaded) == 1 and silu.count("    for m in ") == 1
    made = "    scratch = nl.ndarray((TILE_M, N), dtype=x.dtype, buffer=nl.shared_hbm)\n"
    part = "scratch[0:TILE_M, n * TILE_N : (n + 1) * TILE_N]"
    there = f"            nisa.dma_copy(dst={part}, src=tile)\n"
    back = f"            nisa.dma_copy(dst=tile, src={part})\n"
    return silu.replace("    for m in ", made + "    for m in ").replace(loaded, loaded + there + back)


def every_nth(silu: str) -> str:
    """A tile holds every n-th column."""
    columns = "n * TILE_N : (n + 1) * TILE_N"
    assert silu.count(columns) == 2
    return silu.replace(columns, "n : N : N // TILE_N")


def scaled_first(gqa_full: str) -> str:
    """The weights are divided by their sum before they are turned."""
    inverted = "                nisa.reciprocal(dst=inverse, data=total)\n"
    assert inverted in gqa_full
    made = "                scaled = nl.ndarray((TILE_Q, N), dtype=nl.float32, buffer=nl.sbuf)\n"
    made += "                nisa.tensor_scalar(dst=scaled, data=weights, op0=nl.multiply, operand0=inverse)\n"
    gqa_full = gqa_full.replace(inverted, inverted + made).replace("data=weights[:", "data=scaled[:")
    return gqa_full.replace(
        "tensor_scalar(dst=out, data=acc, op0=nl.multiply, operand0=inverse)", "tensor_copy(dst=out, src=acc)"
    )


def with_dtypes_stated(mamba: str) -> str:
    """As its normal form has them."""
    result = "    result = "
    assert mamba.count(result) == 1
    return mamba.replace(result, f"    assert b.dtype == nl.float32\n    assert c.dtype == nl.float32\n{result}")


def all_at_once(silu: str) -> str:
    """Half a row in one tile, and the next half in the same."""
    assert "TILE_N = 512\n" in silu
    return with_one_buffer(silu).replace("TILE_N = 512\n", "TILE_N = 3584\n")


def in_images(silu: str) -> str:
    """Whole rows in one tile, as rows of 128, and the next ones in the same."""
    before, loops, _ = silu.partition("    for m in ")
    assert loops
    image = "nl.ndarray((TILE_M, N // 128, 128), dtype=x.dtype, buffer=nl.sbuf)"
    place = "m * TILE_M : (m + 1) * TILE_M, 0:N"
    return f"""{before}    tile = {image}
    out = {image}
    for m in range(M // TILE_M):
        nisa.dma_copy(dst=tile, src=x[{place}])
        nisa.activation(dst=out, op=nl.silu, data=tile)
        nisa.dma_copy(dst=result[{place}], src=out)
    return result
"""


def subtracted_first(bmm_softmax: str) -> str:
    """The maximum is subtracted on Vector before the activation reads the difference."""
    biased = "nisa.activation(dst=weights, op=nl.exp, data=scores, bias=negative_max)\n"
    assert biased in bmm_softmax and ", negate=True" in bmm_softmax
    return bmm_softmax.replace(", negate=True", "").replace(
        biased,
        "shifted = nl.ndarray((TILE_M, N), dtype=nl.float32, buffer=nl.sbuf)\n"
        "            nisa.tensor_scalar(dst=shifted, data=scores, op0=nl.subtract, operand0=negative_max)\n"
        "            nisa.activation(dst=weights, op=nl.exp, data=shifted)\n",
    )


def turned_by_dma(matmul: str) -> str:
    return applied(transform_named("transpose-by-dma"), matmul, "x_tile")


ANY_ELEMENTWISE = elementwise.test_every_site_of_a_random_elementwise_kernel_keeps_the_result
CONTRACTS = {
    "hoist-invariant-load": Contract(
        hoist.test_given_the_matmul_seed_then_both_operands_are_offered_and_nothing_else,
        hoist.REFUSALS, hoist.test_refuses,
        hoist.test_every_site_of_a_random_loop_nest_keeps_the_result, "matmul",
    ),
    "hoist-invariant-preparation": Contract(
        hoist.test_work_on_chip_is_hoisted_like_a_load_and_offered_apart,
        hoist.PREPARATION_REFUSALS, hoist.test_preparation_stays_where_it_is,
        hoist.test_every_site_of_a_random_loop_nest_keeps_the_result, "rmsnorm_matmul",
    ),
    "retile": Contract(
        retile.test_every_other_legal_value_is_a_site,
        retile.REFUSALS, retile.test_refuses,
        retile.test_every_site_of_a_random_kernel_keeps_the_result, "silu",
    ),
    "move-elementwise-work": Contract(
        elementwise.test_a_moved_instruction_runs_there_and_gives_the_same_numbers,
        elementwise.MOVE_REFUSALS, elementwise.test_a_move_is_refused,
        ANY_ELEMENTWISE, "bmm",
    ),
    "evacuate-psum": Contract(
        evacuate.test_then_the_work_can_move_to_an_engine_without_a_path_to_psum,
        evacuate.REFUSED, evacuate.test_what_cannot_be_copied_for_sure_is_refused_by_name_and_not_offered,
        evacuate.test_the_same_numbers_whatever_reads_the_tile,
        "mamba", opens="move-elementwise-work", gains=False,
    ),
    "fuse-row-sum": Contract(
        elementwise.test_a_fused_sum_is_the_same_sum_without_an_instruction_of_its_own,
        elementwise.FUSE_REFUSALS, elementwise.test_a_fusion_is_refused,
        ANY_ELEMENTWISE, "bmm_softmax",
    ),
    "fuse-elementwise": Contract(
        fuse.test_one_instruction_does_what_two_did,
        fuse.REFUSED, fuse.test_what_could_change_the_result_is_refused_by_name_and_not_offered,
        fuse.test_fused_kernels_compute_the_same, "add_rmsnorm_matmul",
    ),
    "subtract-in-activation": Contract(
        subtract.test_one_pass_less_and_the_same_numbers,
        subtract.REFUSALS, subtract.test_refuses,
        subtract.test_every_site_of_a_random_kernel_keeps_the_result,
        "bmm_softmax", subtracted_first,
    ),
    "scale-after-product": Contract(
        scale.test_the_product_is_scaled_and_the_operand_is_not,
        scale.REFUSALS, scale.test_refuses,
        scale.test_every_site_of_a_random_kernel_keeps_the_result, "gqa_full", scaled_first,
    ),
    "accumulate-in-psum": Contract(
        psum.test_it_is_offered_once_and_relieves_the_vector_engine,
        psum.REFUSED, psum.test_what_is_not_a_plain_sum_is_refused_by_name_and_not_offered,
        psum.test_the_sum_is_the_same_and_vector_adds_nothing, "matmul", summed_in_sbuf,
    ),
    "drop-copy": Contract(
        drop.test_a_copy_within_sbuf_serves_no_transfer,
        drop.REFUSED, drop.test_a_copy_with_a_purpose_stays_and_is_not_offered,
        drop.test_the_same_numbers_come_of_one_pass_less, "adamw", with_a_copy,
    ),
    "drop-memset": Contract(
        memset.test_nothing_is_set_that_is_loaded_anyway,
        memset.REFUSALS, memset.test_refuses,
        memset.test_every_site_of_a_random_kernel_keeps_the_result, "silu", set_before_it_is_loaded,
    ),
    "transpose-by-dma": Contract(
        by_dma.test_both_operands_of_lora_can_be_turned,
        by_dma.REFUSED, by_dma.test_what_is_more_than_a_turned_load_is_refused_by_name_and_not_offered,
        by_dma.test_the_tile_is_the_same_and_the_tensor_engine_rests, "lora",
    ),
    "transpose-by-pe": Contract(
        by_pe.test_it_is_the_way_back,
        by_pe.REFUSED, by_pe.test_what_cannot_be_turned_afterwards_is_refused_by_name_and_not_offered,
        by_pe.test_the_tile_is_the_same_and_the_transfers_are_plain, "matmul_add_rmsnorm", turned_by_dma,
    ),
    "broadcast-by-dma": Contract(
        broadcast.test_the_row_is_read_by_the_transfer_as_often_as_it_is_needed,
        broadcast.REFUSALS, broadcast.test_refuses,
        broadcast.test_every_site_of_a_random_kernel_keeps_the_result, "mamba", with_dtypes_stated,
    ),
    "contiguous-transfer": Contract(
        contiguous.test_rows_are_loaded_whole_once_for_all_iterations,
        contiguous.REFUSALS, contiguous.test_refuses,
        contiguous.test_every_site_of_a_random_kernel_keeps_the_result, "silu", every_nth,
    ),
    "keep-on-chip": Contract(
        keep.test_nothing_is_stored_and_loaded_again,
        keep.REFUSALS, keep.test_refuses,
        keep.test_every_site_of_a_random_kernel_keeps_the_result, "silu", by_way_of_hbm,
    ),
    "stage-store": Contract(
        staged.test_one_store_for_all_iterations,
        staged.REFUSALS, staged.test_refuses,
        staged.test_every_site_of_a_random_kernel_keeps_the_result, "silu", every_nth,
    ),
    "reciprocal-on-scalar": Contract(
        elementwise.test_a_reciprocal_moves_to_scalar_with_the_same_numbers,
        elementwise.RECIPROCAL_REFUSALS, elementwise.test_a_reciprocal_is_refused,
        ANY_ELEMENTWISE, "adamw",
    ),
    "fill-partitions": Contract(
        fill.test_half_as_many_instructions_do_the_same_work,
        fill.REFUSALS, fill.test_refuses,
        fill.test_every_site_of_a_random_kernel_keeps_the_result, "rope_single_freq_apply",
    ),
    "load-rows-once": Contract(
        once.test_what_windows_share_comes_from_hbm_once_and_sooner,
        once.REFUSALS, once.test_refuses,
        once.test_every_site_of_a_random_kernel_keeps_the_result, "silu", in_windows,
    ),
    "rows-on-partitions": Contract(
        partitions.test_the_same_numbers_from_as_many_rows_as_there_are_partitions,
        partitions.REFUSALS, partitions.test_refuses,
        partitions.test_every_site_of_a_random_kernel_keeps_the_result, "silu", partitions.single_rows,
    ),
    "rotate-buffers": Contract(
        rotate.test_the_next_load_need_not_wait_for_the_readers_of_the_last,
        rotate.REFUSALS, rotate.test_refuses,
        rotate.test_every_site_of_a_random_kernel_keeps_the_result, "silu", with_one_buffer,
    ),
    "block-tiles": Contract(
        block.test_the_matmul_seed_loads_fewer_tiles_and_gets_faster,
        block.REFUSALS, block.test_refuses,
        block.test_every_site_of_a_random_kernel_keeps_the_result, "matmul",
    ),
    "widen-dma-rows": Contract(
        widen.test_transfers_are_fewer_and_their_rows_longer_while_the_work_stays,
        widen.REFUSALS, widen.test_refuses,
        widen.test_every_site_of_a_random_kernel_keeps_the_result, "matmul",
    ),
    "merge-iterations": Contract(
        merge.test_the_same_numbers_from_one_instruction_each,
        merge.REFUSALS, merge.test_refuses,
        merge.test_every_site_of_a_random_kernel_keeps_the_result, "silu", piece_by_piece,
    ),
    "group-transposes": Contract(
        group.test_psum_is_copied_once_for_all_and_so_are_load_and_store,
        group.REFUSALS, group.test_refuses,
        group.test_every_site_of_a_random_kernel_keeps_the_result, "matmul",
    ),
    "split-columns": Contract(
        split.test_each_part_is_loaded_computed_and_stored_by_itself,
        split.REFUSALS, split.test_refuses,
        split.test_every_site_of_a_random_kernel_keeps_the_result, "silu", all_at_once,
    ),
    "share-array": Contract(
        share.test_products_of_a_group_follow_one_another_on_their_own_rows,
        share.REFUSALS, share.test_refuses,
        share.test_every_site_of_a_random_kernel_keeps_the_result, "bmm", turned_before_the_loop,
    ),
    "split-rows": Contract(
        rows.test_the_same_rows_in_parts,
        rows.REFUSALS, rows.test_refuses,
        rows.test_every_site_of_a_random_kernel_keeps_the_result, "silu", in_images,
    ),
    "group-loads": Contract(
        loads.test_one_transfer_for_several_tiles_and_products_in_their_order,
        loads.REFUSALS, loads.test_refuses,
        loads.test_every_site_of_a_random_kernel_keeps_the_result, "matmul",
    ),
    "widen-products": Contract(
        products.test_the_rows_of_several_iterations_in_one_product,
        products.REFUSALS, products.test_refuses,
        products.test_every_site_of_a_random_kernel_keeps_the_result, "bmm", in_narrow_tiles,
    ),
    "interchange-loops": Contract(
        interchange.test_what_depends_on_the_inner_loop_alone_is_loaded_once,
        interchange.REFUSALS, interchange.test_refuses,
        interchange.test_every_site_of_a_random_kernel_keeps_the_result, "matmul",
    ),
}  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: transform.name)
def test_a_transform_has_all_four(transform):
    assert transform.name in CONTRACTS, "write its tests, then enter them here"
    contract = CONTRACTS[transform.name]

    assert contract.applies.__name__.startswith("test_")
    assert len(contract.refusals) >= 3
    assert "check_refused(" in inspect.getsource(contract.refused)
    assert transform.addresses and transform.addresses <= set(Cause), "which causes of gaps it may take away"
    assert contract.equivalent.__name__.startswith("test_") and is_hypothesis_test(contract.equivalent)
    assert load_seed(contract.task)


def test_the_table_holds_nothing_else():
    assert set(CONTRACTS) == {transform.name for transform in TRANSFORMS}


def written() -> set[str]:
    """Names of all classes of the folder that can list sites and change a kernel there; bases have no name."""
    found = set()
    for path in (ROOT / "accelopt_core" / "transforms").glob("[!_]*.py"):
        for each in vars(importlib.import_module(f"accelopt_core.transforms.{path.stem}")).values():
            if inspect.isclass(each) and all(callable(getattr(each, verb, None)) for verb in ("analyze", "apply")):
                found.add(getattr(each, "name", ""))
    return {name for name in found if isinstance(name, str) and name}


def test_every_one_that_is_written_has_its_line_in_the_registry():
    assert written() == {transform.name for transform in STEPS}


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: transform.name)
def test_the_docs_list_it(transform):
    assert f"\n| `{transform.name}` | " in (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")


# --- what is promised, and what is then judged --------------------------------------------------------


@functools.cache
def task_of(name: str) -> Task:
    task = load_seed(name).task()
    preset = task.presets[0]
    if name in SHAPES:
        preset = ShapePreset("only", tuple(SHAPES[name].items()))
    return dataclasses.replace(task, presets=(preset,), seeds=task.seeds[:1])


def judged(name: str, source: str) -> Measured:
    result = LocalTarget("simulator", "trn2").evaluate(
        EvaluationRequest(task_of(name), Candidate("c", source)), lambda step, detail: None
    )
    assert isinstance(result, Measured), result
    return result


@pytest.fixture(scope="module")
def predictor_for() -> Iterator[Callable[[str], Predictor]]:
    made: dict[str, Predictor] = {}

    def predictor(name: str) -> Predictor:
        if name not in made:
            made[name] = Predictor(task_of(name), "trn2", workers=1)
        return made[name]

    yield predictor
    for each in made.values():
        each.close()


def exhausted(
    contract: Contract, source: str, result: Measured, predictor: Predictor, transforms
) -> tuple[str, Measured]:
    """The kernel after every gainful step of these transforms, as the catalogue would take them."""
    proposer = catalogue_proposer(predictor, datetime.date.today, transforms, LookAhead(most_kernels=0, longest_way=0))
    while True:
        start = Candidate("start", source)
        context = RoundContext(1, task_of(contract.task), start, result, start, result, result.latency_us, NKI)
        try:
            plan = proposer.planner.plan(context)
        except NothingToPlan:
            return source, result
        source = proposer.executor.execute(context, plan, ())
        result = judged(contract.task, source)


ALWAYS_JUDGED = {"evacuate-psum"}
"""The others take minutes more, and are slow tests."""


@pytest.mark.parametrize(
    "transform",
    [
        pytest.param(each, id=each.name, marks=() if each.name in ALWAYS_JUDGED else pytest.mark.slow)
        for each in TRANSFORMS
    ],
)
def test_the_gain_that_is_planned_is_the_one_that_is_judged_within_a_quarter(transform, predictor_for):
    """Planned as in a run, by the planner with this one transform; judged in a judge's process, on inputs."""
    contract = CONTRACTS[transform.name]
    source = contract.kernel(load_seed(contract.task).kernel_source)
    start = Candidate("start", source)
    before = judged(contract.task, source)
    context = RoundContext(1, task_of(contract.task), start, before, start, before, before.latency_us, NKI)
    after_it = (transform_named(contract.opens),) if contract.opens else ()
    if after_it:  # begin where that one has nothing left to do
        source, before = exhausted(contract, source, before, predictor_for(contract.task), after_it)
        start = Candidate("start", source)
        context = RoundContext(1, task_of(contract.task), start, before, start, before, before.latency_us, NKI)
    transforms = (transform, *after_it)
    proposer = catalogue_proposer(predictor_for(contract.task), datetime.date.today, transforms)

    if not contract.gains:
        with pytest.raises(NothingToPlan):
            proposer.planner.plan(context)
        return
    plan = proposer.planner.plan(context)
    after = judged(contract.task, proposer.executor.execute(context, plan, ()))

    assert transform.name in [step.transform for step in rewrites_in(plan.details)]
    gain_us = before.latency_us - after.latency_us
    assert plan.expected_gain_us > 0
    assert gain_us == pytest.approx(plan.expected_gain_us, rel=AGREEMENT)
