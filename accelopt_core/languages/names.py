"""The languages' keys and the machines of each, its default first: told without loading a language."""

from __future__ import annotations

from collections.abc import Mapping

MACHINES: Mapping[str, tuple[str, ...]] = {
    "nki": ("trn2", "trn1", "trn3"),
    "triton": ("h100", "a100", "a100-40gb", "a100-pcie", "h100-pcie", "h200", "l4", "l40s", "b200", "rtx4090"),
}
