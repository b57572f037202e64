"""The watcher of a run: facts of every expression, and which iterations share which parts of a buffer."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nki_sim.beta1 import instrument
from nki_sim.beta1.facts import Seen, TileFact, describe
from nki_sim.beta1.indices import Grid, Mask
from nki_sim.beta1.language import Reduced
from nki_sim.beta1.operations import binary
from nki_sim.beta1.symbols import Atom, Binding, Symbolic
from nki_sim.beta1.tiles import Tile, operate, write

_PYTHON: dict[str, Any] = {
    "Add": operator.iadd,
    "Sub": operator.isub,
    "Mult": operator.imul,
    "Div": operator.itruediv,
    "FloorDiv": operator.ifloordiv,
    "Mod": operator.imod,
    "BitAnd": operator.iand,
    "BitOr": operator.ior,
    "BitXor": operator.ixor,
    "LShift": operator.ilshift,
    "RShift": operator.irshift,
    "Pow": operator.ipow,
    "MatMult": operator.imatmul,
}
_TILES = {"Add": "add", "Sub": "subtract", "Mult": "multiply", "Div": "divide"}

Stack = tuple[tuple[int, int], ...]
"""(loop's node, serial number of its iteration), outermost first."""


@dataclass
class Uses:
    """How the buffers of one allocation are used: by whom, and in which iterations."""

    nest: tuple[int, ...] | None = None
    """Loops around every use, outermost first."""
    private: int = 99
    """How many of these loops a value never crosses: it is read in the iteration that wrote it."""
    events: dict[tuple[Stack, tuple[int, ...]], None] = field(default_factory=dict)
    whole: bool = False
    """Used other than by one block at a time."""
    starts: bool = False
    """The first product that is added to it sets it."""
    products_only: bool = True
    """Everything added to it in place is a matrix product."""


class Watcher:
    """Receives what the instrumented kernel reports."""

    def __init__(self) -> None:
        self.seen: defaultdict[int, Seen] = defaultdict(Seen)
        self.reached: set[int] = set()
        """Expressions that were evaluated at least once."""
        self.uses: defaultdict[int, Uses] = defaultdict(Uses)
        self.alloc_stack: dict[int, tuple[int, ...]] = {}
        self.named: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        """What integer names were bound to, by function."""
        self.floats: defaultdict[int, set[float]] = defaultdict(set)
        """What expressions that are floats gave."""
        self.nones: set[int] = set()
        """Expressions that gave None."""
        self.conditions: set[int] = set()
        """Expressions that gave a truth value or an integer."""
        self.arrays: defaultdict[int, set[str]] = defaultdict(set)
        """Element types of the NumPy arrays that expressions gave."""
        self._stack: Stack = ()
        self._serial = 0
        self._last_write: dict[tuple[int, tuple[int, ...]], Stack] = {}
        self._written: set[tuple[int, int]] = set()
        self._bindings: defaultdict[tuple[str, str], Binding] = defaultdict(Binding)

    def names(self) -> dict[str, Any]:
        """What the instrumented source calls."""
        return {
            instrument.SEE: self.see,
            instrument.STORE: self.store,
            instrument.AUGMENT: self.augment,
            instrument.AUGMENT_AT: self.augment_at,
            instrument.LOOP: self.loop,
            instrument.NAME: self.name,
            instrument.CHOICE: self.choice,
        }

    def dtypes(self) -> set[str]:
        """Of all tiles that were seen."""
        facts = (fact for seen in self.seen.values() for fact in seen.kinds.values())
        return {fact.dtype for fact in facts if isinstance(fact, TileFact)}

    def gave_tiles(self, node: int) -> bool:
        """Whether this expression gave a tile, a grid or a mask."""
        return node in self.seen and bool(self.seen[node].kinds)

    # --- reports -----------------------------------------------------------------------------------

    def see(self, node: int, value: Any) -> Any:
        self.reached.add(node)
        if isinstance(value, Tile):
            if not value.buffer.site:
                value.buffer.site = node
                self.alloc_stack.setdefault(node, tuple(loop for loop, _ in self._stack))
            self._note(node, value)
            self._use(value, False)
        elif isinstance(value, Mask):
            self._note(node, value)
            self._extents(node, value)
        else:
            if isinstance(value, Grid):
                self._note(node, value)
            elif value is None:
                self.nones.add(node)
            elif isinstance(value, (int, np.integer, np.bool_)):
                self.conditions.add(node)
            elif type(value) is float:
                self.floats[node].add(value)
            elif isinstance(value, np.ndarray):
                self.arrays[node].add(value.dtype.name)
            elif isinstance(value, (tuple, list)) and any(isinstance(v, (Grid, Mask)) for v in value):
                self.seen[node].kinds["grids"] = "grids"
        return value

    def store(self, node: int, tensor: Any, key: Any, value: Any) -> None:
        if not isinstance(tensor, Tile):
            tensor[key] = value
            return
        target = tensor[key]
        self._note(node, target)
        place = (target.buffer.number, int(target.offset))
        loops = tuple(loop for loop, _ in self._stack)
        if place in self._written or loops != self.alloc_stack.get(target.buffer.site, loops):
            self.seen[node].overwrites = True
        self._written.add(place)
        if isinstance(value, Reduced):
            self._accumulate(target, value)
        elif isinstance(value, Tile):
            box = value.valid if isinstance(value.valid, tuple) else None
            write(target, value.view(box), value.valid)
        else:
            write(target, np.full([int(n) for n in target.shape], value), None)
        self._use(target, True)

    def _accumulate(self, target: Tile, value: Reduced) -> None:
        self._use(target, not value.first)
        box = value.valid if isinstance(value.valid, tuple) else None
        new = value.view(box)
        if not value.first:
            old = target.view(box).astype(np.float32)
            new = binary(value.op)(old, new.astype(np.float32).reshape(old.shape))
        write(target, new, value.valid)

    def store_into(self, target: Tile, value: Tile) -> None:
        self._written.add((target.buffer.number, int(target.offset)))
        write(target, value.view(value.valid if isinstance(value.valid, tuple) else None), value.valid)
        self._use(target, True)

    def augment(self, node: int, target: Any, sign: str, value: Any) -> Any:
        if not isinstance(target, Tile):
            return _PYTHON[sign](target, value)
        self._note(node, target)
        self._add(target, sign, value)
        return target

    def augment_at(self, node: int, tensor: Any, key: Any, sign: str, value: Any) -> None:
        if not isinstance(tensor, Tile):
            tensor[key] = _PYTHON[sign](tensor[key], value)
            return
        target = tensor[key]
        self._note(node, target)
        self._add(target, sign, value)

    def _add(self, target: Tile, sign: str, value: Any) -> None:
        uses = self.uses[target.buffer.site]
        place = (target.buffer.number, int(target.offset))
        if target.memory == "psum" and not target.buffer.filled and place not in self._written:
            uses.starts = True
            self.store_into(target, value)  # the first product in an accumulator sets it
            return
        if not (isinstance(value, Tile) and value.memory == "psum"):
            uses.products_only = False
        self._use(target, False)
        total = operate(_TILES[sign], target, value, dtype=target.numpy)
        valid = value.valid if isinstance(value, Tile) else None
        write(target, total.view(valid if isinstance(valid, tuple) else None), valid)
        self._use(target, True)

    def loop(self, node: int, name: str, function: str, iterable: Iterable[Any]) -> Iterator[Any]:
        outer = self._stack
        for value in iterable:
            self._serial += 1
            self._stack = (*outer, (node, self._serial))
            if name and isinstance(value, int) and not isinstance(value, bool):
                value = self._bound(Atom(name, function, True, int(value)))
            yield value
        self._stack = outer

    def name(self, name: str, function: str, value: Any) -> Any:
        kind = type(value)
        if kind is int or kind is Symbolic or isinstance(value, np.integer):
            self.named[(function, name)].add(int(value))
            return self._bound(Atom(name, function, False, int(value)))
        self._bindings[(function, name)].value = None
        return value

    def choice(self, text: str, function: str, value: Any, *names: Any) -> Any:
        """An integer that is chosen by a condition: by what, is no matter of sums."""
        atoms = tuple(atom for name in names if isinstance(name, Symbolic) for atom in name.terms)
        is_int = isinstance(value, int) and not isinstance(value, bool) and names
        return Symbolic.named(Atom(text, function, False, int(value), text, parts=atoms)) if is_int else value

    def _bound(self, atom: Atom) -> int:
        """The integer that a name holds from now on."""
        binding = self._bindings[(atom.function, atom.name)]
        binding.value = atom.value
        return Symbolic.named(replace(atom, binding=binding))

    # --- what is kept -------------------------------------------------------------------------------

    def _note(self, node: int, value: Any) -> None:
        key, fact = describe(value)
        kinds = self.seen[node].kinds
        if key not in kinds:
            kinds[key] = fact

    def _extents(self, node: int, mask: Mask) -> None:
        rank = max((form.ndim for form in mask.forms), default=0)
        shape = [1] * rank
        for form in mask.forms:
            for axis, size in enumerate(form._ranked(rank).shape):
                shape[axis] = max(shape[axis], int(size))
        box = mask.extents(tuple(shape))
        seen = self.seen[node]
        if box is None:
            seen.box = False
            return
        if any(int(n) == 0 for n in box):
            seen.empty = True
        cut = [int(a) - int(b) for a, b in zip(box, shape)]  # 0 where nothing is cut off
        width = max(len(cut), len(seen.cuts))  # masks of fewer axes are over the last ones
        before, now = ([0] * (width - len(cuts)) + cuts for cuts in (seen.cuts, cut))
        seen.cuts = [min(a, b) for a, b in zip(before, now)]

    def _use(self, tile: Tile, is_write: bool) -> None:
        buffer = tile.buffer
        if not buffer.partition:
            return
        uses = self.uses[buffer.site]
        loops = tuple(loop for loop, _ in self._stack)
        if tile.dims is None or tile.parent is None or tile.parent.dims is not None:
            if tile.dims is not None or is_write:
                uses.whole = True
            return
        blocks = tile.dims[: buffer.partition]
        if len(tile.dims) != len(buffer.shape) or any(any(dim.factors) for dim in blocks):
            uses.whole = True
            return
        uses.nest = loops if uses.nest is None else _common(uses.nest, loops)
        at = tuple(int(dim.base) for dim in blocks)
        uses.events[(self._stack, at)] = None
        last = self._last_write.get((buffer.number, at))
        if is_write:
            self._last_write[(buffer.number, at)] = self._stack
        elif last is not None:
            uses.private = min(uses.private, len(_common(last, self._stack)))


def _common(one: tuple[Any, ...], two: tuple[Any, ...]) -> tuple[Any, ...]:
    length = 0
    for a, b in zip(one, two):
        if a != b:
            break
        length += 1
    return one[:length]
