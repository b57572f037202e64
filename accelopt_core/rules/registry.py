"""The rules there are. A new one is a file of its own and a line here."""

from __future__ import annotations

from accelopt_core.rules.array import ShareArray
from accelopt_core.rules.base import Rule
from accelopt_core.rules.blocking import Block, Interchange
from accelopt_core.rules.buffers import DropMemset, RotateBuffer
from accelopt_core.rules.copies import DropCopy
from accelopt_core.rules.engines import EvacuatePsum, MoveEngine, ReciprocalOnScalar
from accelopt_core.rules.factors import FactorFurtherOn, FactorInActivation, ScalarSecond, SubtractInActivation
from accelopt_core.rules.fusing import FuseElementwise, FuseRowSum
from accelopt_core.rules.grouping import Group, GroupOnPartitions
from accelopt_core.rules.lifting import Lift
from accelopt_core.rules.parts import SplitColumns
from accelopt_core.rules.pipelining import Pipeline
from accelopt_core.rules.products import ScaleAfterProduct
from accelopt_core.rules.rows import DealRows, LoadRowsOnce
from accelopt_core.rules.spreading import BroadcastByDma
from accelopt_core.rules.sums import AccumulateInPsum
from accelopt_core.rules.turning import ExchangeOperands

RULES: tuple[Rule, ...] = (
    Lift(),
    DropCopy(),
    FuseElementwise(),
    FuseRowSum(),
    AccumulateInPsum(),
    ReciprocalOnScalar(),
    BroadcastByDma(),
    DropMemset(),
    RotateBuffer(),
    FactorInActivation(),
    FactorFurtherOn(),
    SubtractInActivation(),
    ScalarSecond(),
    ScaleAfterProduct(),
    ExchangeOperands(),
    Group(),
    GroupOnPartitions(),
    DealRows(),
    LoadRowsOnce(),
    ShareArray(),
    Block(),
    Interchange(),
    Pipeline(),
    SplitColumns(),
    EvacuatePsum(),
    MoveEngine(),
)
