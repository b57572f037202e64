"""What depends on the NeuronCore generation: the version queries, and what only trn3 has."""

from __future__ import annotations

from typing import Any

from nki_sim.errors import NotSupported
from nki_sim.isa.constants import nc_version
from nki_sim.session import current

_VERSIONS = {"trn1": nc_version.gen2, "trn2": nc_version.gen3, "trn3": nc_version.gen4}


def get_nc_version() -> nc_version:
    """The NeuronCore generation the kernel is built for: gen2 (trn1), gen3 (trn2) or gen4 (trn3)."""
    return _VERSIONS[current().machine]


def get_nc_sub_version() -> int:
    """The silicon revision within the generation: 0, the first."""
    current()
    return 0


def _needs_trn3(name: str, instead: str) -> Any:
    def refuse(*arguments: Any, **keywords: Any) -> Any:
        raise NotSupported(f"nisa.{name} needs trn3 (NeuronCore-v4), which this simulator does not model: {instead}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"trn3 (NeuronCore-v4) only, not simulated: {instead}."
    return refuse


nc_matmul_mx = _needs_trn3("nc_matmul_mx", "use nisa.nc_matmul with float8 inputs and perf_mode double_row")
quantize_mx = _needs_trn3("quantize_mx", "scale with nisa.tensor_scalar into a float8_e4m3 tile")
activate2 = _needs_trn3("activate2", "use nisa.activation(scale=, bias=)")
exponential = _needs_trn3("exponential", "use nisa.activation(op=nl.exp, bias=-max)")
rand2 = _needs_trn3("rand2", "use nisa.rng and scale with nisa.tensor_scalar")
