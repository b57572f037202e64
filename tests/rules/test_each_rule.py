"""One small kernel that a rule changes, and one that it must not."""

from __future__ import annotations

import inspect
from contextlib import nullcontext

import numpy as np
import pytest

from accelopt_core.catalogue.search import prepared
from accelopt_core.rules.base import Preparing, Rule, applied
from accelopt_core.rules.places.buffers import RotateBuffer
from accelopt_core.rules.registry import RULES
from nki_sim.checks.accumulation import device_doubts
from nki_sim.loop_ir.changes import Refused
from nki_sim.loop_ir.expansion import expand
from nki_sim.loop_ir.tree import Allocate, Loop, walk
from tests.house.structure import ROOT
from tests.rules.trees import BY_NAME, accepted, outputs_of, refusals, relative_error, retraces, tree_of

HEAD = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, w):
    y = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.shared_hbm)
"""
BROADCAST = """
    ones = nl.ndarray((1, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value={value})
    row = nl.ndarray((1, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=x[2:3, 0:64])
    spread = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=spread, stationary=ones, moving=row)
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=spread)
    nisa.dma_copy(dst=y[0:128, 0:64], src=out)
    return y
"""
TURNED = """
    tile = nl.ndarray((64, {rows}), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_transpose(dst=tile, src={of}, axes=(1, 0))
    nisa.dma_copy(dst=y[0:64, :], src=tile[:, 0:64])
    return y
"""
ZEROS = """
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[0:128, 0:64])
    total = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    {before}
    nisa.memset(dst=total, value={value})
    for i in range(2):
        nisa.nc_matmul(dst=total[:, 0:{columns}], stationary=tile, moving=tile[:, 0:{columns}], accumulate={flag})
    out = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=total)
    nisa.dma_copy(dst=y[0:64, :], src=out)
    return y
"""
LOADS_IN_A_LOOP = """
    tiles = []
    for i in range(2):
        tiles.append(nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf))
        nisa.dma_copy(dst=tiles[i], src=w[i * 64 : (i + 1) * 64, :])
    out = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=out, data1=tiles[0], data2=tiles[1], op=nl.add)
    nisa.dma_copy(dst=y[0:64, :], src=out)
    nisa.dma_copy(dst=y[64:128, :], src=out)
    return y
"""
STEPS_ON_CHIP = """
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[:, 0:64:2], src=x[:, 0:32])
    nisa.dma_copy(dst=tile[:, 1:64:2], src=x[:, 32:64])
    nisa.dma_copy(dst=y[:, 0:32], src=tile[:, 1:64:2])
    nisa.dma_copy(dst=y[:, 32:64], src=tile[:, 0:64:2])
    return y
"""
STEPS_IN_HBM = """
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[:, 0:32], src=x[:, 1:64:2])
    nisa.dma_copy(dst=tile[:, 32:64], src=x[:, 0:64:2])
    nisa.dma_copy(dst=y, src=tile)
    return y
"""
GAPS_NEVER_WRITTEN = """
    scratch = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.private_hbm)
    tile = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[:, 0:32])
    nisa.dma_copy(dst=scratch[:, 0:64:2], src=tile)
    again = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=again, src=scratch[:, 0:64:2])
    nisa.dma_copy(dst=y[:, 0:32], src=again)
    nisa.dma_copy(dst=y[:, 32:64], src=again)
    return y
"""
GAPS_STORED = """
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=y[:, 0:64:2], src=tile[:, 0:32])
    nisa.dma_copy(dst=y[:, 1:64:2], src=tile[:, 32:64])
    return y
"""
ROW_OF_THE_PASS_BEFORE = """
    ones = nl.ndarray((1, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    row = nl.ndarray((1, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=row, value=1.0)
    for i in range(4):
        spread = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=spread, stationary=ones, moving=row)
        nisa.dma_copy(dst=row, src=x[i : i + 1, 0:64])
        out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=spread)
        nisa.dma_copy(dst=y[0:128, 0:64], src=out)
    return y
"""
ROWS = """
    for i in range(8):
        row = nl.ndarray((1, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=row, src=x[i : i + 1, 0:64])
        out = nl.ndarray((1, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=out, data=row, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=y[i : i + 1, 0:64], src=out)
    return y
"""
ROWS_THAT_WAIT = """
    row = nl.ndarray((1, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=x[0:1, 0:64])
    for i in range(8):
        nisa.tensor_tensor(dst=row, data1=row, data2=row, op=nl.add)
    nisa.dma_copy(dst=y[0:1, 0:64], src=row)
    return y
"""
MEMSET = """
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    nisa.dma_copy(dst=tile[:, 0:{until}], src=x[0:128, 0:{until}])
    nisa.dma_copy(dst=y[0:128, 0:64], src=tile)
    return y
"""
ROTATE = """
    tile = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.sbuf)
    {before}
    for i in range(4):
        {fill}
        nisa.dma_copy(dst=y[0:128, i * 16 : (i + 1) * 16], src=tile)
    return y
"""
FILL = "nisa.dma_copy(dst=tile, src=x[0:128, i * 16 : (i + 1) * 16])"
DOUBLED = "nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)"
TILE = """
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[0:128, 0:64])
    number = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=number, src=x[0:128, 3:4])
    made = nl.ndarray((128, 64), dtype={dtype}, buffer=nl.sbuf)
    {first}
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    {second}
    nisa.dma_copy(dst=y[0:128, 0:64], src=out)
    return y
"""
LESS = "nisa.tensor_scalar(dst=made, data=tile, op0=nl.subtract, operand0=number)"
EXP = "nisa.activation(dst=out, op=nl.exp, data=made, scale=0.5)"
TWICE = "nisa.tensor_tensor(dst=out, data1=made, data2=tile, op=nl.add)\n    " + EXP
SHARED = """
    a = nl.ndarray(({rows}, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[0:{rows}, 0:64])
    for n in range(2):
        {more}
        b = nl.ndarray(({rows}, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=b, src=w[0:{rows}, n * 32 : (n + 1) * 32])
        product = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=a, moving=b)
        out = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=product)
        nisa.dma_copy(dst=y[0:64, n * 32 : (n + 1) * 32], src=out)
    return y
"""
DIAGONAL = """
    for i in range(2):
        tile = nl.ndarray((64, 16), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[0:64, i * 16 : (i + 1) * 16])
        for j in range(2):
            part = tile[j * 32 : (j + 1) * 32, j * 8 : (j + 1) * 8]
            nisa.dma_copy(dst=y[j * 32 : (j + 1) * 32, i * 8 : (i + 1) * 8], src=part)
    return y
"""
NEST = """
    total = nl.ndarray((32, 16), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=1.0)
    for i in range(4):
        for j in range(4):
            tile = nl.ndarray((32, 16), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[i * 32 : (i + 1) * 32, j * 16 : (j + 1) * 16])
            {more}
            nisa.dma_copy(dst=y[i * 32 : (i + 1) * 32, j * 16 : (j + 1) * 16], src=tile)
    return y
"""
CARRIED = """nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.multiply)
            nisa.tensor_tensor(dst=tile, data1=total, data2=tile, op=nl.add)"""
TENSOR_AND_VECTOR = """
    weights = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights, src=w[0:64, 0:32])
    for i in range(4):
        rows = nl.ndarray((32, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=x[i * 32 : (i + 1) * 32, 0:64])
        turned = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=rows)
        standing = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=standing, src=turned)
        product = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=standing, moving=weights)
        out = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=product)
        nisa.dma_copy(dst=y[i * 32 : (i + 1) * 32, 0:32], src=out)
    return y
"""
TENSOR_AND_VECTOR_OF_LISTS = TENSOR_AND_VECTOR.replace(
    "    for i in", "    outs = []\n    for i in", 1
).replace("nisa.dma_copy(dst=y[i", "outs.append(out)\n    for i in range(4):\n        nisa.dma_copy(dst=y[i").replace(
    "src=out)", "src=outs[i])"
)  # fmt: skip
IN_HALVES = """
    weights = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights, src=w[0:64, 0:32])
    for i in range(4):
        standing = []
        for j in range(2):
            rows = nl.ndarray((16, 64), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=rows, src=x[i * 32 + j * 16 : i * 32 + j * 16 + 16, 0:64])
            turned = nl.ndarray((64, 16), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=rows)
            standing.append(nl.ndarray((64, 16), dtype=nl.float32, buffer=nl.sbuf))
            nisa.tensor_copy(dst=standing[j], src=turned)
        for j in range(2):
            product = nl.ndarray((16, 32), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=product, stationary=standing[j], moving=weights)
            out = nl.ndarray((16, 32), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out, src=product)
            nisa.dma_copy(dst=y[i * 32 + j * 16 : i * 32 + j * 16 + 16, 0:32], src=out)
    return y
"""
IMAGE = """
    image = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=image, src=x[0:128, 0:64])
    {between}
    pooled = nl.ndarray((128, 4, 4), dtype=nl.float32, buffer=nl.sbuf)
    windows = image.ap([[64, 128], [16, 4], [2, 4], [8, 2], [1, 2]])
    nisa.tensor_reduce(dst=pooled, op=nl.add, data=windows, axis=(3, 4))
    nisa.dma_copy(dst=y[0:128, 0:16], src=pooled)
    return y
"""
BESIDE = "nisa.tensor_tensor(dst=image[:, {to}], data1=image[:, 0:60], data2=image[:, 1:61], op=nl.add)"
SHUFFLED = """
    row = nl.ndarray((1, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=x[2:3, 0:64])
    {more}
    spread = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    for at in range(4):
        nisa.nc_stream_shuffle(dst=spread[at * 32 : (at + 1) * 32, :], src=row, shuffle_mask=[0] * 32)
    nisa.dma_copy(dst=y[0:128, 0:64], src=spread)
    return y
"""
SHUFFLED_FLAT = (
    SHUFFLED.replace("    for at in range(4):\n        nisa", "    nisa")
    .replace("[at * 32 : (at + 1) * 32, :]", "[0:32, :]")
    .replace("y[0:128, 0:64], src=spread", "y[0:32, 0:64], src=spread[0:32, :]")
)
COLUMNS_OF_PASSES = """
    for d in range(16):
        a = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x.ap(pattern=[[64, 128], [16, 4]], offset=d))
        out = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=out, data=a, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst={into}, src=out)
        {more}
    return y
"""
ITS_OWN = "y.ap(pattern=[[64, 128], [16, 4]], offset=d)"
STORED_AND_LOADED = """
    for d in range(16):
        out = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=out, value=1.0)
        nisa.dma_copy(dst=y.ap(pattern=[[64, 128], [16, 4]], offset=d), src=out)
        back = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=back, src=y[0:128, 0:64])
    return y
"""
LOADED_AND_STORED = """
    for d in range(16):
        a = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x.ap(pattern=[[64, 128], [16, 4]], offset=d))
        nisa.dma_copy(dst=x[0:128, 0:4], src=a)
    nisa.dma_copy(dst=y[0:128, 0:64], src=x[0:128, 0:64])
    return y
"""
IN_HBM = """
    kept = nl.ndarray((4, 32, 64), dtype={dtype}, buffer=nl.private_hbm)
    for i in range(4):
        rows = nl.ndarray((32, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=x[i * 32 : (i + 1) * 32, 0:64])
        doubled = nl.ndarray((32, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=doubled, data1=rows, data2=rows, op=nl.add)
        nisa.dma_copy(dst=kept[i, :, :], src=doubled)
    for i in range(4):
        again = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=again, src=kept[{taken}])
        nisa.dma_copy(dst=y[{into}], src=again)
    return y
"""
TWO_LOOPS = """
    kept = nl.ndarray((128, 4, 16), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(4):
        nisa.dma_copy(dst=kept[:, i, :], src=x[0:128, i * 16 : (i + 1) * 16])
    {between}
    for i in range(4):
        out = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=out, data=kept[:, {which}, :], op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=y[0:128, i * 16 : (i + 1) * 16], src=out)
    return y
"""
ALL_AT_ONCE = "nisa.tensor_scalar(dst=kept, data=kept, op0=nl.add, operand0=1.0)"
HALF_FULL = """
    one = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=one, src=x[0:64, 0:64])
    two = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=two, data1=one, data2=one, op=nl.add)
    nisa.dma_copy(dst=y[0:64, 0:64], src=two)
    {more}
    return y
"""
DEPTHWISE = """
    weights = nl.ndarray((64, 4), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights, src=w[0:64, 0:4])
    turned_in_psum = nl.ndarray((4, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned_in_psum, data=weights)
    turned = nl.ndarray((4, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=turned, src=turned_in_psum)
    {more}
    for c in range(64):
        image = nl.ndarray((4, 61), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=image, src=x.ap(pattern=[[1, 4], [1, 61]], offset=c * 64))
        made = nl.ndarray((1, 61), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=made, stationary=turned[:, c : c + 1], moving=image)
        out = nl.ndarray((1, 61), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=made)
        nisa.dma_copy(dst=y[c : c + 1, 0:61], src=out)
    return y
"""
CHANGED = "nisa.tensor_scalar(dst=turned, data=turned, op0=nl.add, operand0=1.0)"
CHUNKS = """
    total = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
    rows = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=x[0:128, 0:64])
    made = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    for j in range(4):
        nisa.activation(dst=made[:, j * 16 : (j + 1) * 16], op=nl.exp, data=rows[:, j * 16 : (j + 1) * 16])
        {more}
        nisa.tensor_reduce(dst=total[:, j : j + 1], op=nl.add, data=made[:, j * 16 : (j + 1) * 16], axis=1)
    nisa.dma_copy(dst=y[0:128, 0:4], src=total)
    return y
"""
CHANGED_ROWS = "nisa.tensor_scalar(dst=made[:, j * 16 : j * 16 + 4], data=rows[:, 0:4], op0=nl.add, operand0=1.0)"
TWO_LIVES = """
    tile = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(2):
        nisa.dma_copy(dst=tile, src=x[0:128, i * 16 : (i + 1) * 16])
        nisa.dma_copy(dst=y[0:128, i * 16 : (i + 1) * 16], src=tile)
    for i in range(2):
        nisa.dma_copy(dst=tile, src=w[0:128, i * 16 : (i + 1) * 16])
        nisa.dma_copy(dst=y[0:128, i * 16 + 32 : (i + 1) * 16 + 32], src=tile)
    return y
"""
SUMMED = """
    total = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value={first})
    for k in range(2):
        a = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[k * 64 : (k + 1) * 64, 0:64])
        b = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=b, src=w[k * 64 : (k + 1) * 64, 0:32])
        product = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=a, moving=b)
        copied = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=copied, src=product)
        nisa.tensor_tensor(dst=total, data1=total, data2=copied, op=nl.add)
        {more}
    nisa.dma_copy(dst=y[0:64, 0:32], src=total)
    return y
"""
SUMMED_IN_PSUM = """
    for row in range(2):
        for one in range(1):
            {made}
            nisa.memset(dst=total, value={first})
            for k in range(2):
                a = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=a, src=x[k * 64 : (k + 1) * 64, 0:64])
                for part in range(2):
                    b = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.dma_copy(dst=b, src=w[k * 64 : (k + 1) * 64, part * 32 : (part + 1) * 32])
                    product = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.psum)
                    nisa.nc_matmul(dst=product, stationary=a[:, row * 32 : (row + 1) * 32], moving=b{how})
                    copied = nl.ndarray((32, 32), dtype=nl.{dtype}, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=copied, src=product)
                    nisa.tensor_tensor(dst=total, data1=total, data2=copied, op=nl.add)
                {more}
            {then}
            out = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out, src=total)
            nisa.dma_copy(dst=y[row * 32 : (row + 1) * 32, 0:32], src=out)
    return y
"""
TOTAL_IN_PSUM = "total = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.psum)"
USED_IN_PSUM = (
    "copied = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf); nisa.tensor_copy(dst=copied, src=total); "
    "nisa.dma_copy(dst=y[64:96, 0:32], src=copied)"
)
PARTS_APART = """
    tile = nl.ndarray((128, 8, 2), dtype=nl.float32, buffer=nl.sbuf)
    for part in range(2):
        nisa.dma_copy(dst=tile[:, :, part], src=x[0:128, part * 8 : (part + 1) * 8])
    flat = tile.reshape((128, 16))
    nisa.dma_copy(dst=y[0:128, 0:{count}], src=flat[:, 16 - {count} : 16])
    return y
"""
PASSES = """
    for part in range(x.shape[1] // 32):
        tile = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[0:128, part * 32 : (part + 1) * 32])
        nisa.dma_copy(dst=y[0:128, part * 32 : (part + 1) * 32], src=tile)
    return y
"""
USED = "nisa.dma_copy(dst=y[64:128, 0:32], src=total)"
PART_OF_MEMSET = MEMSET.format(until=32).replace("y[0:128, 0:64], src=tile", "y[0:128, 0:32], src=tile[:, 0:32]")
GROW = "nisa.tensor_scalar(dst=a, data=a, op0=nl.add, operand0=1.0)"

HELD = """
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.{where})
    nisa.dma_copy(dst=tile, src=x)
    {more}
    nisa.dma_copy(dst=y, src=tile)
    return y
"""
PLACED = "sbuf, address=(0, 0)"
ADD = "nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)"
ADD_IN_PART = "nisa.tensor_scalar(dst=tile[:, 0:32], data=tile[:, 0:32], op0=nl.add, operand0=1.0)"
IN_A_LOOP = "for i in range(3):\n        "
ON_DEVICE = "for i in nl.dynamic_range(0, 3):\n        "
TWICE_IN_A_LOOP = f"{IN_A_LOOP}{ADD}\n        {ADD}"
GATHER = """index = nl.ndarray((128, 1), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.iota(dst=index, pattern=[[0, 1]], channel_multiplier=2)
    rows = w.ap(pattern=[[64, 128], [1, 64]], vector_offset=index, indirect_dim=0)
    nisa.dma_copy(dst=tile, src=rows, oob_mode=nisa.oob_mode.{mode})"""
GATHERED = "tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)\n    " + GATHER.format(mode="skip")
ROWS_BESIDE = """
    rows = nl.ndarray((32, 4, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=x.ap(pattern=[[64, 32], [2048, 4], [1, 64]]))
    nisa.{work}
    nisa.dma_copy(dst=y.ap(pattern=[[64, 32], [2048, 4], [1, 64]]), src=rows)
    return y
"""
ROWS_MIXED = "tensor_tensor(dst=rows[:, 0:3, :], data1=rows[:, 0:3, :], data2=rows[:, 1:4, :], op=nl.add)"
CORNER = """
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    nisa.dma_copy(dst=tile[{rows}, 0:16], src=x[{rows}, 0:16])
    for i in range(2):
        nisa.dma_copy(dst=y[{rows}, i * 8 : i * 8 + 8], src=tile[{rows}, i * 8 + {first} : i * 8 + {first} + 8])
    return y
"""
CONVERTED = """
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    narrow = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=narrow, src=tile)
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.{work}
    nisa.dma_copy(dst=y, src=out)
    return y
"""
REDUCED = """
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    out = nl.ndarray((128, {n}), dtype=nl.{dtype}, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=out, data=tile{of}, op=nl.{op}, axis={axis})
    nisa.dma_copy(dst=y[:, 0:{n}], src=out)
    return y
"""
WINDOWS = ".ap(pattern=[[64, 128], [8, 7], [1, 6], [8, 2], [1, 3]])"
LOADED_WINDOWS = """
    for i in range(3):
        tile = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[:, i * 4 : i * 4 + 16])
        nisa.dma_copy(dst=y[:, i * 16 : (i + 1) * 16], src=tile)
    return y
"""
STEERED = """
    number = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=number, value=1)
    tile = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x.ap(pattern=[[64, 128], [1, 32]], scalar_offset=number, indirect_dim=1))
    nisa.dma_copy(dst=y[:, 0:32], src=tile, engine=nisa.engine.sync)
    return y
"""
NARROW = """
    first = nl.ndarray((128, {made}), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=first, value=0.0)
    nisa.dma_copy(dst=first[:, 0:64], src=x)
    second = nl.ndarray((128, {made}), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.{work}
    nisa.dma_copy(dst=y[:, 0:16], src=second[:, 0:16])
    unread = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=unread, data1=first[:, 0:64], data2=unread, op=nl.add)
    return y
"""
ALL_COLUMNS = "tensor_scalar(dst=second, data=first, op0=nl.add, operand0=1.0)"
ROW_SUM = """activation(
        dst=second, data=first, op=nl.exp, reduce_op=nl.add, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reset_reduce
    )
    nisa.dma_copy(dst=y[:, 16:17], src=total)"""


def _in_psum(
    made: str = TOTAL_IN_PSUM, first: float = 0.0, how: str = "", dtype: str = "float32", more: str = "", then: str = ""
) -> str:
    return SUMMED_IN_PSUM.format(made=made, first=first, how=how, dtype=dtype, more=more, then=then)


def _reduced(op: str, of: str = WINDOWS, axis: object = (3, 4), n: int = 42, dtype: str = "float32") -> str:
    return REDUCED.format(op=op, of=of, axis=axis, n=n, dtype=dtype)


def _tile(first: str, second: str, dtype: str = "nl.float32") -> str:
    return TILE.format(first=first, second=second, dtype=dtype)


ACCEPTED = (
    ("group-transfers", LOADS_IN_A_LOOP),
    ("group-transfers", LOADED_WINDOWS),
    ("reduce-by-steps", _reduced("maximum")),
    ("reduce-by-steps", _reduced("add")),
    ("reduce-by-steps", _reduced("add", ".reshape((128, 16, 4))", 2, 16)),
    ("split-columns", _reduced("maximum", "", 1, 1)),
    ("drop-copy", CONVERTED.format(work="tensor_scalar(dst=out, data=narrow, op0=nl.multiply, operand0=2.0)")),
    ("subtract-in-activation", _tile(LESS, EXP, "nl.bfloat16")),
    ("hardware-queue", STEERED),
    ("split-columns", ROWS_BESIDE.format(work=ROWS_MIXED)),
    ("group-transfers", COLUMNS_OF_PASSES.format(into=ITS_OWN, more=GATHERED.replace("\n", "\n    "))),
    ("stage-transfer", STEPS_ON_CHIP),
    ("stage-transfer", STEPS_IN_HBM),
    ("transpose-on-tensor", TURNED.format(rows=128, of="x")),
    ("broadcast-by-dma", BROADCAST.format(value="1.0")),
    ("rows-on-partitions", ROWS),
    ("drop-memset", MEMSET.format(until=64)),
    ("rotate-buffers", ROTATE.format(before="", fill=FILL)),
    ("subtract-in-activation", _tile(LESS, EXP)),
    ("share-array", SHARED.format(rows=64, more="")),
    ("broadcast-by-dma", SHUFFLED_FLAT.format(more="")),
    ("group-transfers", COLUMNS_OF_PASSES.format(into=ITS_OWN, more="")),
    (
        "keep-on-chip",
        IN_HBM.format(dtype="nl.float32", shape="(32, 64)", taken="i, :, :", into="i * 32 : (i + 1) * 32, 0:64"),
    ),
    ("fuse-loops", TWO_LOOPS.format(between="", which="i")),
    ("fuse-loops", TWO_LOOPS.format(between=ALL_AT_ONCE, which="i")),
    ("fill-partitions", HALF_FULL.format(more="")),
    ("products-on-vector", DEPTHWISE.format(more="")),
    ("rotate-buffers", TWO_LIVES),
    ("hardware-queue", TWO_LIVES),
    ("fuse-row-sum", CHUNKS.format(more="")),
    ("drop-memset", PART_OF_MEMSET),
    ("accumulate-in-psum", SUMMED.format(first=0.0, more="")),
    ("accumulate-in-psum", SUMMED.format(first=1.0, more="")),
    ("accumulate-in-psum", _in_psum()),
    ("accumulate-in-psum", _in_psum(dtype="bfloat16")),
    ("inline-single-pass", _in_psum()),
    ("order-dimensions", PARTS_APART.format(count=16)),
    ("order-dimensions", PARTS_APART.format(count=6)),
    ("split-columns", IMAGE.format(between="")),
    ("interchange-loops", NEST.format(more="")),
    ("pipeline", TENSOR_AND_VECTOR),
    ("pipeline", TENSOR_AND_VECTOR_OF_LISTS),
    ("pipeline", IN_HALVES),
)
REFUSED = (
    ("drop-copy", CONVERTED.format(work="dma_copy(dst=out, src=narrow)"), "converts"),
    ("reduce-by-steps", _reduced("add", dtype="bfloat16"), "would round"),
    ("reduce-by-steps", _reduced("multiply"), "another order"),
    ("broadcast-by-dma", BROADCAST.format(value="2.0"), "ones"),
    (
        "transpose-on-tensor",
        TURNED.format(rows=256, of="x.reshape((256, 32))")
        .replace("64, 256", "32, 256")
        .replace("y[0:64, :]", "y[0:32, :]"),
        "partitions",
    ),
    ("stage-transfer", GAPS_STORED, "would be written"),
    ("stage-transfer", GAPS_NEVER_WRITTEN, "what lies between"),
    ("merge-iterations", DIAGONAL, "by a partition and within it"),
    ("broadcast-by-dma", ROW_OF_THE_PASS_BEFORE, "just loaded"),
    ("rows-on-partitions", ROWS_THAT_WAIT, "earlier pass"),
    ("drop-memset", MEMSET.format(until=32), "reads what is set"),
    (
        "broadcast-by-dma",
        SHUFFLED_FLAT.format(more="nisa.tensor_tensor(dst=row, data1=row, data2=row, op=nl.add)"),
        "just loaded",
    ),
    ("group-transfers", STORED_AND_LOADED, "touches what"),
    ("group-transfers", LOADED_AND_STORED, "writes what"),
    (
        "keep-on-chip",
        IN_HBM.format(dtype="nl.bfloat16", shape="(32, 64)", taken="i, :, :", into="i * 32 : (i + 1) * 32, 0:64"),
        "converts",
    ),
    (
        "keep-on-chip",
        IN_HBM.format(dtype="nl.float32", shape="(4, 64)", taken=":, i, :", into="i * 4 : (i + 1) * 4, 0:64"),
        "other partitions",
    ),
    ("fuse-loops", TWO_LOOPS.format(between="", which="3 - i"), "whole before"),
    ("hardware-queue", TWO_LIVES.replace(", src=", ", engine=nisa.engine.scalar, src="), "has a queue"),
    ("fuse-row-sum", CHUNKS.format(more=CHANGED_ROWS), "other elements"),
    ("products-on-vector", DEPTHWISE.format(more=CHANGED), "not just loaded"),
    ("accumulate-in-psum", SUMMED.format(first=0.0, more=USED), "used in the loop"),
    ("accumulate-in-psum", _in_psum(more=USED_IN_PSUM), "used in the loop"),
    ("accumulate-in-psum", _in_psum(first=1.0), "another tile"),
    ("accumulate-in-psum", _in_psum(how=", accumulate=False"), "only it takes"),
    ("accumulate-in-psum", _in_psum(then="nisa.memset(dst=total, value=2.0)"), "several sums"),
    ("accumulate-in-psum", "    " + TOTAL_IN_PSUM + _in_psum(made=""), "several sums"),
    ("order-dimensions", PARTS_APART.format(count=9), "in another form"),
    ("rotate-buffers", ROTATE.format(before=FILL.replace("i ", "0 "), fill=DOUBLED), "outside of the loop"),
    (
        "rotate-buffers",
        ROTATE.format(before="", fill=FILL.replace("tile,", "tile[0:64, :],").replace("128", "64")),
        "earlier",
    ),
    ("subtract-in-activation", _tile(LESS, TWICE), "used elsewhere"),
    ("subtract-in-activation", _tile(LESS, EXP, "nl.float8_e4m3"), "rounds"),
    ("share-array", SHARED.format(rows=64, more=GROW), "changes what all"),
    ("split-columns", IMAGE.format(between=BESIDE.format(to="0:60")), "another part"),
    ("interchange-loops", NEST.format(more=CARRIED), "in their order"),
    (
        "pipeline",
        TENSOR_AND_VECTOR.replace("x[i * 32 : (i + 1) * 32", "y[0:32").replace("y[i * 32 : (i + 1) * 32", "y[0:32"),
        "of a later pass",
    ),
)


def _arguments() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((128, 64)).astype(np.float32) for _ in range(2)]


def _source(body: str) -> str:
    return HEAD.format(shape="(128, 64)") + body


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_it_says_what_it_does_and_has_a_row_in_the_catalogues_page(rule: Rule) -> None:
    assert inspect.getdoc(rule)
    assert f"`{rule.name}`" in (ROOT / "docs/catalogue.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("rule", "body"), ACCEPTED, ids=[rule for rule, _ in ACCEPTED])
def test_changes(rule: str, body: str) -> None:
    kernel = tree_of(_source(body), _arguments())
    wanted = outputs_of(kernel, _arguments())
    made = accepted(rule, kernel)
    assert made
    for _, changed in made:
        assert changed != kernel
        assert relative_error(wanted, changed, _arguments()) <= (1e-2 if "bfloat16" in body else 1e-6)
        assert retraces(changed, _source(body), _arguments())


@pytest.mark.parametrize(("rule", "body", "reason"), REFUSED, ids=[f"{rule}: {why}" for rule, _, why in REFUSED])
def test_refuses(rule: str, body: str, reason: str) -> None:
    reasons = refusals(rule, tree_of(_source(body), _arguments()))
    assert any(reason in each for each in reasons), reasons


WHOLE = (128, 64)


@pytest.mark.parametrize(
    ("body", "shapes"),
    [
        (HELD.format(where="sbuf", more=ADD), [WHOLE, WHOLE]),
        (HELD.format(where="sbuf", more=f"{ADD}\n    {ADD}"), [WHOLE, WHOLE, WHOLE]),
        (HELD.format(where="sbuf", more=TWICE_IN_A_LOOP), [WHOLE, WHOLE]),
        (HELD.format(where="sbuf", more=IN_A_LOOP + ADD), [WHOLE]),
        (HELD.format(where="sbuf", more=ON_DEVICE + ADD), [WHOLE]),
        (HELD.format(where="sbuf", more=ADD_IN_PART), [WHOLE]),
        (HELD.format(where="sbuf", more=GATHER.format(mode="error").replace("=2", "=1")), [(128, 1), WHOLE]),
        (HELD.format(where="sbuf", more=GATHER.format(mode="skip")), [WHOLE, (128, 1)]),
        (HELD.format(where=PLACED, more=ADD), [WHOLE]),
        (HELD.format(where="shared_hbm", more="return tile"), []),
        (CORNER.format(rows="0:128", first=0), [(128, 16)]),
        (CORNER.format(rows="0:64", first=0), [(64, 16)]),
        (CORNER.format(rows="0:64", first=8), [(64, 24)]),
        (CORNER.format(rows="64:128", first=0), [(128, 16)]),
        (NARROW.format(made=64, work=ALL_COLUMNS), [(128, 16)] * 2),
        (NARROW.format(made=96, work=ALL_COLUMNS), [(128, 16)] * 2),
        (NARROW.format(made=64, work=ROW_SUM), [WHOLE, WHOLE, (128, 1)]),
    ],
)
def test_a_search_begins_with_tiles_cut_to_their_use_and_one_for_each_value(body, shapes) -> None:
    kernel, rule = tree_of(_source(body), _arguments()), RotateBuffer()
    (changed,) = prepared([rule], (kernel,))
    made = [changed.buffers[node.buffer] for node, _ in walk(changed.body) if isinstance(node, Allocate)]
    assert [buffer.shape for buffer in made if buffer.region.on_chip] == shapes
    assert prepared([rule], (changed,)) == (changed,)
    assert relative_error(outputs_of(kernel, _arguments()), changed, _arguments()) == 0
    assert retraces(changed, _source(body), _arguments())


def test_a_value_has_a_tile_of_its_own_where_it_may_at_every_shape() -> None:
    source = _source(HELD.format(where="sbuf", more=ADD.replace("=tile", "=tile[:, 0 : w.shape[1]]")))
    x, w = _arguments()
    in_part, whole = (tree_of(source, [x, each]) for each in (w[:, 0:32], w))
    rule = RotateBuffer()
    assert prepared([rule], (whole,)) != (whole,)
    assert prepared([rule], (in_part, whole)) == (in_part, whole)


@pytest.mark.parametrize(
    ("value", "columns", "flag", "before", "begins"),
    [
        (0.0, 64, True, "", True),
        (0.0, 64, "i == 1", "", False),
        (0.0, 32, True, "", False),
        (1.0, 64, True, "", False),
        (0.0, 64, True, "nisa.nc_matmul(dst=total, stationary=tile, moving=tile)", False),
    ],
)
def test_a_search_begins_with_sums_in_psum_that_a_product_begins(value, columns, flag, before, begins) -> None:
    """Where zeros lie under all of the sum, and nothing else goes into it; else it is left as it was."""
    source = _source(ZEROS.format(value=value, columns=columns, flag=flag, before=before))
    kernel, rule = tree_of(source, _arguments()), BY_NAME["drop-memset"]
    (changed,) = prepared([rule], (kernel,))
    assert (changed != kernel) == begins
    assert not (begins and device_doubts(expand(changed)))
    assert relative_error(outputs_of(kernel, _arguments()), changed, _arguments()) == 0
    assert retraces(changed, source, _arguments())


def test_integers_are_not_turned_on_the_tensor_engine() -> None:
    source = _source(TURNED.format(rows=128, of="x").replace("float32", "int32")).replace("float32", "int32")
    assert not accepted("transpose-on-tensor", tree_of(source, [each.astype(np.int32) for each in _arguments()]))


def test_products_of_whole_columns_have_no_part_of_the_array() -> None:
    kernel = tree_of(_source(SHARED.format(rows=128, more="")), _arguments())
    assert not accepted("share-array", kernel)


@pytest.mark.parametrize(("other", "inlines"), [(32, True), (64, False)])
def test_a_loop_is_inlined_that_has_one_pass_at_every_shape(other: int, inlines: bool) -> None:
    shapes = [(128, 32), (128, other)]
    kernels = tuple(tree_of(_source(PASSES), [np.zeros(shape, np.float32), _arguments()[1]]) for shape in shapes)
    rule = BY_NAME["inline-single-pass"]
    assert isinstance(rule, Preparing)
    with nullcontext() if inlines else pytest.raises(Refused, match="at every shape"):
        made = applied(rule, kernels, rule.preparation(kernels[-1]))
        assert not any(isinstance(node, Loop) for kernel in made for node, _ in walk(kernel.body))
