"""How fast the machine could do a task's work: the yardstick that every kernel of it is held against."""

from __future__ import annotations

from accelopt_core.evaluation import Bounds
from accelopt_core.task import Task, Work
from accelopt_core.toolchain import Facts, MachineModel


def bounds_for(task: Task, facts: Facts, machine: MachineModel) -> Bounds:
    """From the work the task declares for its full shape, else from what this kernel was counted to do.

    Where operations are not counted, as on a GPU, the bound is that of what it reads and writes alone.
    Raises ValueError when neither is known.
    """
    declared = task.full.work
    if declared is not None:
        return machine.bounds(declared, task.precision)
    if not facts.hbm_bytes or (facts.matmul_flops is None) != (facts.vector_ops is None):
        raise ValueError(
            f"task {task.name} declares no work for {task.full.name} and the profile counts none: "
            "add matmul_flops, vector_ops and hbm_bytes to the shape preset"
        )
    counted = Work(facts.matmul_flops or 0, facts.vector_ops or 0, facts.hbm_bytes)
    return machine.bounds(counted, task.precision, declared=False)
