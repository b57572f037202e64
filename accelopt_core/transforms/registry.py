"""The transforms there are. A new one is a file of its own and a line here."""

from __future__ import annotations

from accelopt_core.transforms.accumulate_in_psum import AccumulateInPsum
from accelopt_core.transforms.base import Transform
from accelopt_core.transforms.block_tiles import BlockTiles
from accelopt_core.transforms.broadcast_by_dma import BroadcastByDma
from accelopt_core.transforms.contiguous_transfers import ContiguousTransfers
from accelopt_core.transforms.drop_copy import DropCopy
from accelopt_core.transforms.drop_memset import DropMemset
from accelopt_core.transforms.evacuate_psum import EvacuatePsum
from accelopt_core.transforms.fill_partitions import FillPartitions
from accelopt_core.transforms.fuse_elementwise import FuseElementwise
from accelopt_core.transforms.fuse_row_sum import FuseRowSum
from accelopt_core.transforms.group_loads import GroupLoads
from accelopt_core.transforms.group_transposes import GroupTransposes
from accelopt_core.transforms.hoist_invariant_loads import HoistInvariantLoads, HoistInvariantPreparation
from accelopt_core.transforms.interchange_loops import InterchangeLoops
from accelopt_core.transforms.keep_on_chip import KeepOnChip
from accelopt_core.transforms.load_rows_once import LoadRowsOnce
from accelopt_core.transforms.merge_iterations import MergeIterations
from accelopt_core.transforms.move_engine import MoveEngine
from accelopt_core.transforms.normalize import NORMALIZE
from accelopt_core.transforms.reciprocal_on_scalar import ReciprocalOnScalar
from accelopt_core.transforms.retile import Retile
from accelopt_core.transforms.rotate_buffers import RotateBuffers
from accelopt_core.transforms.rows_on_partitions import RowsOnPartitions
from accelopt_core.transforms.scale_after_product import ScaleAfterProduct
from accelopt_core.transforms.share_array import ShareArray
from accelopt_core.transforms.split_columns import SplitColumns
from accelopt_core.transforms.split_rows import SplitRows
from accelopt_core.transforms.staged_stores import StagedStores
from accelopt_core.transforms.subtract_in_activation import SubtractInActivation
from accelopt_core.transforms.transpose_by_dma import TransposeByDma
from accelopt_core.transforms.transpose_by_pe import TransposeByPe
from accelopt_core.transforms.widen_dma_rows import WidenDmaRows
from accelopt_core.transforms.widen_products import WidenProducts

TRANSFORMS: tuple[Transform, ...] = (
    HoistInvariantLoads(),
    HoistInvariantPreparation(),
    Retile(),
    MoveEngine(),
    EvacuatePsum(),
    FuseRowSum(),
    FuseElementwise(),
    SubtractInActivation(),
    ScaleAfterProduct(),
    AccumulateInPsum(),
    DropCopy(),
    DropMemset(),
    TransposeByDma(),
    TransposeByPe(),
    BroadcastByDma(),
    ContiguousTransfers(),
    KeepOnChip(),
    LoadRowsOnce(),
    ReciprocalOnScalar(),
    FillPartitions(),
    RowsOnPartitions(),
    RotateBuffers(),
    BlockTiles(),
    WidenDmaRows(),
    SplitColumns(),
    ShareArray(),
    SplitRows(),
    MergeIterations(),
    GroupTransposes(),
    GroupLoads(),
    WidenProducts(),
    StagedStores(),
    InterchangeLoops(),
)


STEPS: tuple[Transform, ...] = (NORMALIZE, *TRANSFORMS)
"""What the catalogue may do: any of these, at a kernel as it stands or, with the first, at its normal form."""


LOCAL = frozenset(
    {
        MoveEngine.name,
        EvacuatePsum.name,
        FuseRowSum.name,
        FuseElementwise.name,
        SubtractInActivation.name,
        ScaleAfterProduct.name,
        DropCopy.name,
        DropMemset.name,
        TransposeByDma.name,
        TransposeByPe.name,
        BroadcastByDma.name,
        ContiguousTransfers.name,
        KeepOnChip.name,
        ReciprocalOnScalar.name,
        RotateBuffers.name,
    }
)
"""Transforms whose sites are single instructions, tiles or transfers, so that one step may take several of them. What
changes loops changes what else can be done with them, and goes alone."""


def transform_named(name: str) -> Transform:
    """Raises KeyError with the names there are."""
    for transform in STEPS:
        if transform.name == name:
            return transform
    raise KeyError(f"no transform is called {name}; there are: {', '.join(t.name for t in TRANSFORMS)}")


LESS_WORK = frozenset(
    {
        AccumulateInPsum.name,
        BroadcastByDma.name,
        ContiguousTransfers.name,
        DropCopy.name,
        DropMemset.name,
        FuseElementwise.name,
        FuseRowSum.name,
        HoistInvariantLoads.name,
        HoistInvariantPreparation.name,
        KeepOnChip.name,
        LoadRowsOnce.name,
        RotateBuffers.name,
        ScaleAfterProduct.name,
        StagedStores.name,
        SubtractInActivation.name,
    }
)
"""Transforms after which less is done, or less waited for, and the loops are what they were. They stand in the way of
no other; what regroups iterations stands in the way of most of them."""
