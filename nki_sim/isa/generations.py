"""What depends on the NeuronCore generation: which instructions it has, and the version queries."""

from __future__ import annotations

from typing import Any

from nki_sim.errors import NotSupported
from nki_sim.isa.constants import nc_version
from nki_sim.machine import first_with, machine
from nki_sim.tracing.session import current

SINCE = {
    "range_select": 3,
    "nonzero_with_count": 3,
    "rand_set_state": 3,
    "rand_get_state": 3,
    "core_barrier": 3,
    "sendrecv": 3,
    "nc_matmul_mx": 4,
    "quantize_mx": 4,
    "activate2": 4,
    "exponential": 4,
    "rand2": 4,
}
"""The first NeuronCore version that has an instruction (its API page); version 2 has those that are not here."""
MODES_SINCE = {("matmul_perf_mode", "double_row"): 3, ("dge_mode", "hwdge"): 3}
"""The same for (enum, member)."""


def get_nc_version() -> nc_version:
    """The NeuronCore generation the kernel is built for: gen2 (trn1), gen3 (trn2) or gen4 (trn3)."""
    return nc_version(machine(current().machine).neuron_core_version)


def get_nc_sub_version() -> int:
    """The silicon revision within the generation: 0, the first."""
    current()
    return 0


def _not_simulated(name: str, instead: str) -> Any:
    first = first_with(SINCE[name])

    def refuse(*arguments: Any, **keywords: Any) -> Any:
        raise NotSupported(f"nisa.{name} needs {first}, which this simulator does not model: {instead}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"{first} only, not simulated: {instead}."
    return refuse


nc_matmul_mx = _not_simulated("nc_matmul_mx", "use nisa.nc_matmul with float8 inputs and perf_mode double_row")
quantize_mx = _not_simulated("quantize_mx", "scale with nisa.tensor_scalar into a float8_e4m3 tile")
activate2 = _not_simulated("activate2", "use nisa.activation(scale=, bias=)")
exponential = _not_simulated("exponential", "use nisa.activation(op=nl.exp, bias=-max)")
rand2 = _not_simulated("rand2", "use nisa.rng and scale with nisa.tensor_scalar")
