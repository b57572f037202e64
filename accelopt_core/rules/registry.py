"""The rules there are. A new one is a file of its own and a line here."""

from __future__ import annotations

from accelopt_core.rules.base import Rule
from accelopt_core.rules.blocking import Block
from accelopt_core.rules.copies import DropCopy
from accelopt_core.rules.engines import MoveEngine
from accelopt_core.rules.fusing import FuseElementwise, FuseRowSum
from accelopt_core.rules.grouping import Group
from accelopt_core.rules.lifting import Lift

RULES: tuple[Rule, ...] = (Lift(), DropCopy(), FuseElementwise(), FuseRowSum(), Group(), Block(), MoveEngine())
