"""The rules there are. A new one is a file of its own and a line here."""

from __future__ import annotations

from accelopt_core.rules.base import Rule
from accelopt_core.rules.copies import DropCopy
from accelopt_core.rules.loops.grouping import Group, GroupOnPartitions
from accelopt_core.rules.loops.joining import FuseLoops
from accelopt_core.rules.loops.lifting import Block, InlineSinglePass, Interchange, Lift
from accelopt_core.rules.loops.parts import SplitColumns
from accelopt_core.rules.loops.pipelining import Pipeline
from accelopt_core.rules.places.buffers import DropMemset, RotateBuffer
from accelopt_core.rules.places.filling import FillPartitions
from accelopt_core.rules.places.keeping import KeepOnChip
from accelopt_core.rules.places.spreading import BroadcastByDma
from accelopt_core.rules.places.staging import OrderDimensions, StageTransfer, TransposeOnTensor
from accelopt_core.rules.places.transfers import GroupTransfers
from accelopt_core.rules.work.array import ShareArray
from accelopt_core.rules.work.engines import EvacuatePsum, HardwareQueue, MoveEngine, ReciprocalOnScalar
from accelopt_core.rules.work.fusing import FuseElementwise, FuseRowSum, SubtractInActivation
from accelopt_core.rules.work.sums import AccumulateInPsum
from accelopt_core.rules.work.vector_products import ProductsOnVector
from accelopt_core.rules.work.windows import ReduceBySteps

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
    ReduceBySteps(),
    FuseLoops(),
    StageTransfer(),
    TransposeOnTensor(),
    OrderDimensions(),
    GroupTransfers(),
    Group(),
    GroupOnPartitions(),
    ProductsOnVector(),
    FillPartitions(),
    ShareArray(),
    Block(),
    Interchange(),
    Pipeline(),
    SplitColumns(),
    HardwareQueue(),
    EvacuatePsum(),
    MoveEngine(),
)
