"""The measured scoring of tokens of `data/trn2_device/token_scoring.csv`, written anew from its description.

Rows of logits (tokens x vocabulary, bfloat16) are scored in float32: the log-probability of one chosen column each, and
the entropy. On two cores, each with half of the rows, that never meet. All transfers are the plain `dma_copy`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import nki_sim
from nki_sim import dtypes
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.nki.kernel import Kernel
from nki_sim.program.program import Program
from nki_sim.tracing.session import TensorSpec

LOWEST = -3.0e38
"""In place of minus infinity, which a maximum starts with."""


@dataclass(frozen=True)
class Blocks:
    tall: int
    """Rows of a block."""
    wide: int
    """Columns of a tile."""


def fused(tokens: int, vocabulary: int, tall: int, wide: int) -> Program:
    """One pass over the logits for both scores."""

    def kernel(logits: Any, chosen: Any) -> Any:
        chances, entropies = _result(tokens), _result(tokens)
        _pass(logits, chosen, chances, entropies, Blocks(tall, wide))
        return chances, entropies

    return _trace(kernel, tokens, vocabulary)


def twice(tokens: int, vocabulary: int, tall: int, wide: int) -> Program:
    """A pass for the log-probability, then one for the entropy; each loads all logits."""

    def kernel(logits: Any, chosen: Any) -> Any:
        chances, entropies = _result(tokens), _result(tokens)
        _pass(logits, chosen, chances, None, Blocks(tall, wide))
        _pass(logits, chosen, None, entropies, Blocks(tall, wide))
        return chances, entropies

    return _trace(kernel, tokens, vocabulary)


def library(tokens: int, vocabulary: int, tall: int, wide: int) -> Program:
    """AWS's cross entropy, a pass for the entropy, and the losses loaded back, negated and stored."""

    def kernel(logits: Any, chosen: Any) -> Any:
        chances, entropies, losses, maxima = (_result(tokens) for _ in range(4))
        _cross_entropy(logits, chosen, losses, maxima, Blocks(tall, wide))
        _pass(logits, chosen, None, entropies, Blocks(tall, wide))
        for row, count in _rows(tokens, tall):
            here = slice(row, row + count)
            loss, chance = _column(count), _column(count)
            nisa.dma_copy(dst=loss, src=losses[here])
            nisa.tensor_scalar(dst=chance, data=loss, op0=nl.multiply, operand0=-1.0)
            nisa.dma_copy(dst=chances[here], src=chance)
        return chances, entropies

    return _trace(kernel, tokens, vocabulary)


KERNELS = {"score_fused": fused, "score_twice": twice, "score_library": library}
"""By their names in the file."""


def _rows(tokens: int, tall: int) -> Iterator[tuple[int, int]]:
    """(first row, how many) of this core's blocks."""
    half = tokens // nl.num_programs()
    first = nl.program_id() * half
    for row in range(first, first + half, tall):
        yield row, min(tall, first + half - row)


def _column(rows: int, dtype: Any = nl.float32) -> Any:
    return nl.ndarray((rows, 1), dtype=dtype, buffer=nl.sbuf)


def _result(tokens: int) -> Any:
    return nl.ndarray((tokens, 1), dtype=nl.float32, buffer=nl.shared_hbm)


def _pass(logits: Any, chosen: Any, chances: Any, entropies: Any, blocks: Blocks) -> None:
    """Either result may be None: then it is not computed."""
    tokens, vocabulary = logits.shape
    for row, count in _rows(tokens, blocks.tall):
        here = slice(row, row + count)
        target, found, place, low, high, old, new, drop, fade, total, part, weighted, more, log, scaled = (
            _column(count) for _ in range(15)
        )
        index = _column(count, nl.uint32)
        if chances is not None:
            nisa.dma_copy(dst=target, src=chosen[here])
            nisa.memset(dst=found, value=0.0)
        for left in range(0, vocabulary, blocks.wide):
            width = min(blocks.wide, vocabulary - left)
            x, e = (nl.ndarray((count, width), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
            t = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.sbuf) if entropies is not None else None
            nisa.dma_copy(dst=x, src=logits[here, left : left + width])
            if chances is not None:
                nisa.tensor_scalar(dst=place, data=target, op0=nl.subtract, operand0=float(left))
                nisa.tensor_scalar(dst=low, data=place, op0=nl.greater_equal, operand0=0.0)
                nisa.tensor_scalar(dst=high, data=place, op0=nl.less, operand0=float(width))
                nisa.tensor_tensor(dst=low, data1=low, data2=high, op=nl.multiply)
                nisa.tensor_scalar(
                    dst=place, data=place, op0=nl.maximum, operand0=0.0, op1=nl.minimum, operand1=float(width - 1)
                )
                nisa.tensor_copy(dst=index, src=place)
                nisa.nc_n_gather(dst=high, data=x, indices=index)
                nisa.tensor_tensor(dst=high, data1=high, data2=low, op=nl.multiply)
                nisa.tensor_tensor(dst=found, data1=found, data2=high, op=nl.add)
            nisa.tensor_reduce(dst=new, op=nl.maximum, data=x, axis=1)
            if left:
                nisa.tensor_tensor(dst=new, data1=old, data2=new, op=nl.maximum)
                nisa.tensor_tensor(dst=drop, data1=old, data2=new, op=nl.subtract)
                nisa.activation(dst=fade, op=nl.exp, data=drop)
                if entropies is not None:
                    nisa.tensor_tensor(dst=part, data1=drop, data2=total, op=nl.multiply)
                    nisa.tensor_tensor(dst=weighted, data1=weighted, data2=part, op=nl.add)
                    nisa.tensor_tensor(dst=weighted, data1=weighted, data2=fade, op=nl.multiply)
                nisa.tensor_tensor(dst=total, data1=total, data2=fade, op=nl.multiply)
            nisa.tensor_scalar(dst=drop, data=new, op0=nl.multiply, operand0=-1.0)
            nisa.activation_reduce(dst=e, op=nl.exp, data=x, reduce_op=nl.add, reduce_res=part, bias=drop)
            if entropies is not None:
                nisa.tensor_scalar(dst=t, data=x, op0=nl.subtract, operand0=new)
                nisa.tensor_tensor(dst=t, data1=e, data2=t, op=nl.multiply)
                nisa.tensor_reduce(dst=more, op=nl.add, data=t, axis=1)
            for sum_, addend in ((total, part), (weighted, more if entropies is not None else None)):
                if addend is not None and left:
                    nisa.tensor_tensor(dst=sum_, data1=sum_, data2=addend, op=nl.add)
                elif addend is not None:
                    nisa.tensor_copy(dst=sum_, src=addend)
            nisa.tensor_copy(dst=old, src=new)
        nisa.activation(dst=log, op=nl.log, data=total)
        if chances is not None:
            nisa.tensor_tensor(dst=found, data1=found, data2=old, op=nl.subtract)
            nisa.tensor_tensor(dst=found, data1=found, data2=log, op=nl.subtract)
            nisa.dma_copy(dst=chances[here], src=found)
        if entropies is not None:
            nisa.reciprocal(dst=scaled, data=total)
            nisa.tensor_tensor(dst=weighted, data1=weighted, data2=scaled, op=nl.multiply)
            nisa.tensor_tensor(dst=scaled, data1=log, data2=weighted, op=nl.subtract)
            nisa.dma_copy(dst=entropies[here], src=scaled)


def _cross_entropy(logits: Any, chosen: Any, losses: Any, maxima: Any, blocks: Blocks) -> None:
    """With its buffers outside all loops, of `tall` partitions however many rows there are."""
    tokens, vocabulary = logits.shape
    tall, wide = blocks.tall, min(blocks.wide, vocabulary)
    x, e = (nl.ndarray((tall, wide), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
    largest, mine, new, fade, total, part, sum_, loss, value = (_column(tall) for _ in range(9))
    target = _column(tall, nl.int32)
    for row, count in _rows(tokens, tall):
        nisa.memset(dst=largest, value=LOWEST)
        nisa.memset(dst=total, value=0.0)
        nisa.dma_copy(dst=target[:count], src=chosen[row : row + count])
        for left in range(0, vocabulary, wide):
            width = min(wide, vocabulary - left)
            if width < wide:
                nisa.memset(dst=x, value=LOWEST)
            nisa.dma_copy(dst=x[:count, :width], src=logits[row : row + count, left : left + width])
            nisa.tensor_reduce(dst=mine, op=nl.maximum, data=x, axis=1)
            nisa.tensor_tensor(dst=new, data1=largest, data2=mine, op=nl.maximum)
            nisa.tensor_tensor(dst=fade, data1=largest, data2=new, op=nl.subtract)
            nisa.activation(dst=fade, op=nl.exp, data=fade)
            nisa.tensor_tensor(dst=part, data1=total, data2=fade, op=nl.multiply)
            nisa.tensor_scalar(dst=e, data=x, op0=nl.subtract, operand0=new)
            nisa.activation(dst=e, op=nl.exp, data=e)
            nisa.tensor_reduce(dst=sum_, op=nl.add, data=e, axis=1)
            nisa.tensor_tensor(dst=part, data1=part, data2=sum_, op=nl.add)
            nisa.tensor_copy(dst=largest, src=new)
            nisa.tensor_copy(dst=total, src=part)
        nisa.activation(dst=loss, op=nl.log, data=total)
        nisa.tensor_tensor(dst=loss, data1=loss, data2=largest, op=nl.add)
        for at in range(count):
            element = logits.ap(
                [[vocabulary, 1], [1, 1]],
                offset=(row + at) * vocabulary,
                scalar_offset=target[at : at + 1, :],
                indirect_dim=1,
            )
            nisa.dma_copy(dst=value[at : at + 1, :], src=element)
        nisa.tensor_tensor(dst=loss, data1=loss, data2=value, op=nl.subtract)
        nisa.dma_copy(dst=losses[row : row + count], src=loss[:count])
        nisa.dma_copy(dst=maxima[row : row + count], src=largest[:count])


def _trace(kernel: Any, tokens: int, vocabulary: int) -> Program:
    logits = TensorSpec((tokens, vocabulary), dtypes.bfloat16)
    return nki_sim.trace(Kernel(kernel, 2), logits, TensorSpec((tokens, 1), dtypes.int32))
