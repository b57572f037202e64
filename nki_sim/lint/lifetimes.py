"""From which NKI version to which a name of nki.isa and nki.language is to be written; all others always."""

from __future__ import annotations

from collections.abc import Iterable

from nki_sim.lint.findings import VERSIONS

FIRST: dict[str, str] = {
    **{f"nki.isa.{name}": "0.7" for name in ("NkiScalar", "scalar_load", "scalar_store")},
    **{
        f"nki.language.{name}": "0.7"
        for name in (
            "NkiBlockGrid", "NkiGrid", "NkiTileGrid", "alloc_blocks", "alloc_tiles", "blocks", "int64", "tiles",
            "uint64",
        )
    },
    "nki.language.fori_loop": "0.6",
    "nki.language.while_loop": "0.6",
}  # fmt: skip
"""By dotted name: the first version that has it."""

LAST: dict[str, str] = {
    "nki.language.par_dim": "0.2",
    "nki.language.dynamic_range": "0.5",
    "nki.language.affine_range": "0.6",
    "nki.language.sequential_range": "0.6",
    "nki.language.static_range": "0.6",
}
"""By dotted name: the last version that neither lacks nor deprecates it."""


def current_in(name: str, versions: Iterable[str]) -> bool:
    """Is a name there, and not deprecated, in all of these versions?"""
    first, last = VERSIONS.index(FIRST.get(name, VERSIONS[0])), VERSIONS.index(LAST.get(name, VERSIONS[-1]))
    return all(first <= VERSIONS.index(version) <= last for version in versions)
