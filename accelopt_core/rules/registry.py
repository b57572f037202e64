"""The rules there are. A new one is a file of its own and a line here."""

from __future__ import annotations

from accelopt_core.rules.base import Rule
from accelopt_core.rules.blocking import Block
from accelopt_core.rules.copies import DropCopy
from accelopt_core.rules.engines import EvacuatePsum, MoveEngine, ReciprocalOnScalar
from accelopt_core.rules.fusing import FuseElementwise, FuseRowSum
from accelopt_core.rules.grouping import Group
from accelopt_core.rules.lifting import Lift
from accelopt_core.rules.parts import SplitColumns
from accelopt_core.rules.sums import AccumulateInPsum

RULES: tuple[Rule, ...] = (
    Lift(),
    DropCopy(),
    FuseElementwise(),
    FuseRowSum(),
    AccumulateInPsum(),
    ReciprocalOnScalar(),
    Group(),
    Block(),
    SplitColumns(),
    EvacuatePsum(),
    MoveEngine(),
)
