"""What each node of a cluster is, and whether it judges a known kernel."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from accelopt_core.ports import TargetError
from infra import doctor
from infra.engines.engine import Command, Node, Placement
from infra.engines.ray_engine import RayEngine

_LIMIT_S = 900.0
_MOST_AT_ONCE = 32


@dataclass(frozen=True)
class ExaminedNode:
    node: Node
    versions: str
    report: doctor.DoctorReport | None
    """None where it could not be examined ..."""
    why: str = ""
    """... for this reason, in one line."""

    @property
    def heading(self) -> str:
        node = self.node
        cores = f"{node.cpus:g} CPUs, {node.neuron_cores:g} NeuronCores"
        memory = f"{node.memory_bytes / (1 << 30):.1f} GiB, object store {node.object_store_bytes / (1 << 20):,.0f} MiB"
        return f"node {node.id[:12]}  {node.host} ({node.address}): {cores}, {memory}; {self.versions or 'no versions'}"


def examine_nodes(engine: RayEngine, machine: str) -> Iterator[ExaminedNode]:
    """Each node that has a CPU, in the order of their addresses. machine: which the simulator is to be there.

    Raises TargetError where the cluster is out of reach.
    """
    nodes = sorted((node for node in engine.nodes() if node.cpus >= 1), key=lambda node: (node.address, node.id))
    with ThreadPoolExecutor(_MOST_AT_ONCE) as threads:
        yield from threads.map(lambda node: _examined(engine, node, machine), nodes)


def _examined(engine: RayEngine, node: Node, machine: str) -> ExaminedNode:
    command = Command(("-m", "infra.doctor", "--json", "--machine", machine), _LIMIT_S)
    try:
        done = engine.carry_out(command, lambda line: None, Placement(node.id))
    except TargetError as error:
        return ExaminedNode(node, "", None, str(error))
    try:
        return ExaminedNode(node, done.versions, doctor.from_printed(done.result or ""))
    except ValueError:
        return ExaminedNode(node, done.versions, None, f"its doctor gives no report: {done.last_words}")
