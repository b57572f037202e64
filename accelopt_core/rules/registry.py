"""The rules there are. A new one is a file of its own and a line here."""

from __future__ import annotations

from accelopt_core.rules.array import ShareArray
from accelopt_core.rules.base import Rule
from accelopt_core.rules.buffers import DropMemset, RotateBuffer
from accelopt_core.rules.copies import DropCopy
from accelopt_core.rules.engines import EvacuatePsum, HardwareQueue, MoveEngine, ReciprocalOnScalar
from accelopt_core.rules.filling import FillPartitions
from accelopt_core.rules.fusing import FuseElementwise, FuseRowSum, SubtractInActivation
from accelopt_core.rules.grouping import Group, GroupOnPartitions
from accelopt_core.rules.joining import FuseLoops
from accelopt_core.rules.keeping import KeepOnChip
from accelopt_core.rules.lifting import Block, InlineSinglePass, Interchange, Lift
from accelopt_core.rules.parts import SplitColumns
from accelopt_core.rules.pipelining import Pipeline
from accelopt_core.rules.rows import DealRows
from accelopt_core.rules.spreading import BroadcastByDma
from accelopt_core.rules.staging import OrderDimensions, StageTransfer, TransposeOnTensor
from accelopt_core.rules.sums import AccumulateInPsum
from accelopt_core.rules.transfers import GroupTransfers
from accelopt_core.rules.vector_products import ProductsOnVector

RULES: tuple[Rule, ...] = (
    Lift(),
    KeepOnChip(),
    DropCopy(),
    FuseElementwise(),
    FuseRowSum(),
    AccumulateInPsum(),
    ReciprocalOnScalar(),
    BroadcastByDma(),
    DropMemset(),
    InlineSinglePass(),
    RotateBuffer(),
    SubtractInActivation(),
    FuseLoops(),
    StageTransfer(),
    TransposeOnTensor(),
    OrderDimensions(),
    GroupTransfers(),
    Group(),
    GroupOnPartitions(),
    ProductsOnVector(),
    FillPartitions(),
    DealRows(),
    ShareArray(),
    Block(),
    Interchange(),
    Pipeline(),
    SplitColumns(),
    HardwareQueue(),
    EvacuatePsum(),
    MoveEngine(),
)
