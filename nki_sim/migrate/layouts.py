"""Where a tile of the old kernel is allocated in the new one, and with which dimensions.

An old tile may have block dimensions in front of its partition dimension, one tile for each block, and the old
compiler kept only those alive that were needed. In the new one every dimension takes memory in each partition. So
a tile whose blocks are private to the iterations of a loop is allocated in that loop, without the block dimensions
that do not change there; what block dimensions are left come after the partition dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from nki_sim.beta1.facts import TileFact
from nki_sim.beta1.watching import Uses, Watcher
from nki_sim.dtypes import as_dtype
from nki_sim.machine import DEFAULT_MACHINE, ISA, machine

_SBUF_BYTES = machine(DEFAULT_MACHINE).sbuf_partition_bytes
_PSUM_BYTES = ISA.psum_banks * ISA.psum_bank_bytes // 2
"""Half of a partition's PSUM: accumulators need the rest."""


@dataclass(frozen=True)
class Layout:
    """The new form of one allocation."""

    order: tuple[int, ...]
    """Old dimensions in the order of the new ones; dropped ones are not in it."""
    loop: int | None
    """The loop in whose body it is allocated; None: where it was."""
    memory: str
    """Where it is now: PSUM tiles that do not fit there go to SBUF, SBUF tiles that do not fit to HBM."""
    products: bool
    """What is added to it in place is all matrix products, which start over by themselves."""

    def of_view(self, kept: tuple[int, ...]) -> Layout:
        """The same for a view that has these of the old dimensions left."""
        return replace(self, order=tuple(kept.index(k) for k in self.order if k in kept))


def layout_of(watcher: Watcher, site: int, fact: TileFact, spilled: frozenset[int] = frozenset()) -> Layout:
    """For the allocation at expression `site`, whose tile is `fact`. `spilled`: sites that have to be in HBM."""
    rank, partition = len(fact.shape), fact.partition
    uses = watcher.uses.get(site, Uses())
    if fact.memory == "hbm":
        return Layout(tuple(range(rank)), None, "hbm", uses.products_only)
    dropped: tuple[int, ...] = ()
    loop = None
    if partition and uses.nest and not uses.whole and uses.events:
        here = len(watcher.alloc_stack.get(site, ()))
        depth = min(len(uses.nest), uses.private)
        if depth > here:
            dropped = _constant_blocks(uses, depth, partition)
            loop = uses.nest[depth - 1]
    order = (partition, *(k for k in range(rank) if k != partition and k not in dropped))
    memory = fact.memory
    if memory == "psum" and per_partition(fact, order) > _PSUM_BYTES:
        memory = "sbuf"
    return Layout(order, loop, "hbm" if site in spilled else memory, uses.products_only)


def per_partition(fact: TileFact, order: tuple[int, ...]) -> int:
    """Bytes that a tile takes in each partition."""
    return prod(fact.shape[k].value for k in order[1:]) * as_dtype(fact.dtype).itemsize


def _constant_blocks(uses: Uses, depth: int, partition: int) -> tuple[int, ...]:
    """Block dimensions that have one index throughout each iteration at that depth."""
    first: dict[tuple[int, ...], tuple[int, ...]] = {}
    constant = [True] * partition
    for stack, at in uses.events:
        iteration = tuple(serial for _, serial in stack[:depth])
        known = first.setdefault(iteration, at)
        constant = [still and a == b for still, a, b in zip(constant, known, at)]
    return tuple(k for k in range(partition) if constant[k])


def largest(watcher: Watcher, spilled: frozenset[int]) -> int | None:
    """The allocation in SBUF, block dimensions and all, that takes most of each partition."""
    sizes: dict[int, int] = {}
    for site in watcher.alloc_stack:
        fact = watcher.seen[site].any()
        if isinstance(fact, TileFact) and fact.memory != "hbm" and fact.partition and site not in spilled:
            layout = layout_of(watcher, site, fact)
            if layout.memory == "sbuf":
                sizes[site] = per_partition(fact, layout.order)
    return max(sizes, key=lambda site: sizes[site], default=None)


def may_overflow(watcher: Watcher, spilled: frozenset[int]) -> bool:
    """Whether one allocation in SBUF alone takes a quarter of it or more."""
    site = largest(watcher, spilled)
    if site is None:
        return False
    fact = watcher.seen[site].any()
    return per_partition(fact, layout_of(watcher, site, fact).order) > _SBUF_BYTES // 4
