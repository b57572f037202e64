"""Kernels as people write them: helpers, classes, lists of tiles, registers, loops on the device. Not run as it stands:
its text is compiled with marks."""

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np

TILE = 128


class Tiles:
    """Blocks of rows, loaded where they are first asked for."""

    def __init__(self, source, count):
        self.source, self.made = source, [None] * count

    def __getitem__(self, at):
        if self.made[at] is None:
            self.made[at] = load(self.source, at)
        return self.made[at]


def load(source, at):
    tile = nl.ndarray((TILE, source.shape[1]), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source[at * TILE : (at + 1) * TILE, :])
    return tile


def store(out, at, tile):
    nisa.dma_copy(dst=out[at * TILE : (at + 1) * TILE, :], src=tile)


@nki.jit
def lazy_class(x):
    """The first pass of the outer loop loads, and no other does."""
    out = nl.ndarray((3 * x.shape[0], x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = Tiles(x, x.shape[0] // TILE)
    for times in range(3):
        for at in range(x.shape[0] // TILE):
            done = nl.ndarray((TILE, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=done, data=tiles[at], op0=nl.multiply, operand0=2.0)
            store(out, times * (x.shape[0] // TILE) + at, done)
    return out


@nki.jit
def comprehension(x):
    """Tiles in a list, used in another order than they were made."""
    count = x.shape[0] // TILE
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = [load(x, at) for at in range(count)]
    for at in range(count):
        store(out, at, tiles[count - 1 - at])
    return out


def by_quadrants(out, x, at):
    tile = load(x, at)
    for start in range(0, TILE, 32):
        part = tile[start : start + 32, :]
        nisa.tensor_scalar(dst=part, data=part, op0=nl.multiply, operand0=2.0)
        nisa.activation(dst=part, op=nl.exp, data=part)
    store(out, at, tile)


@nki.jit
def calls(x):
    """A helper's lines, run several times and in no loop."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    by_quadrants(out, x, 0)
    by_quadrants(out, x, 1)
    by_quadrants(out, x, 2)
    return out


@nki.jit
def edges(x):
    """A last tile that is smaller, and a first pass that is different."""
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((TILE, columns), dtype=nl.float32, buffer=nl.sbuf)
    for start in range(0, rows, TILE):
        size = min(TILE, rows - start)
        tile = nl.ndarray((TILE, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[0:size, :], src=x[start : start + size, :])
        if start == 0:
            nisa.tensor_copy(dst=total, src=tile)
        else:
            nisa.tensor_tensor(dst=total[0:size, :], data1=total[0:size, :], data2=tile[0:size, :], op=nl.add)
        nisa.dma_copy(dst=out[start : start + size, :], src=total[0:size, :])
    return out


@nki.jit
def groups(q, k):
    """Several heads of one operand share one of the other."""
    heads, shared = q.shape[0], k.shape[0]
    out = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    for head in range(heads):
        a = nl.ndarray(q.shape[1:], dtype=q.dtype, buffer=nl.sbuf)
        b = nl.ndarray(k.shape[1:], dtype=k.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=q[head])
        nisa.dma_copy(dst=b, src=k[head // (heads // shared)])
        nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.maximum)
        nisa.dma_copy(dst=out[head], src=a)
    return out


@nki.jit
def constants(x):
    """An identity, and numbers that are written one by one."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    identity = nl.shared_constant(np.eye(TILE, dtype=np.float32))
    weights = nl.shared_constant(np.array([[3.0, 1.0, 4.0, 1.5]], np.float32))
    a = load(x, 0)
    b = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
    c = nl.ndarray((1, 4), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=b, src=identity)
    nisa.dma_copy(dst=c, src=weights)
    product = nl.ndarray((TILE, x.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=b, moving=a)
    nisa.tensor_copy(dst=a, src=product)
    nisa.tensor_copy(dst=a[0:1, 0:4], src=c)
    store(out, 0, a)
    return out


@nki.jit
def views(x):
    """Steps, dimensions of stride 0, another order, another dtype."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = load(x, 0)
    half = nl.ndarray((TILE, x.shape[1] // 2), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=half, src=tile[:, ::2])
    row = tile[:, 0:1].ap([[x.shape[1], TILE], [0, x.shape[1] // 2]])
    nisa.tensor_tensor(dst=half, data1=half, data2=row, op=nl.add)
    nisa.tensor_copy(dst=tile[:, 1::2], src=half)
    turned = tile.reshape_dim(1, (2, x.shape[1] // 2)).permute((0, 2, 1))
    nisa.tensor_scalar(dst=turned, data=turned, op0=nl.add, operand0=1.0)
    bits = tile.view(nl.int32)
    nisa.tensor_scalar(dst=bits, data=bits, op0=nl.bitwise_and, operand0=-2)
    store(out, 0, tile)
    return out


@nki.jit
def registers(x, index):
    """A row that the device chooses, and rows that it gathers."""
    out = nl.ndarray((2 * TILE, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    chosen = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=chosen, src=index[0:1, 0:1])
    at = nisa.register_alloc()
    nisa.register_load(dst=at, src=chosen)
    tile = nl.ndarray((TILE, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[0:1, :].ap([[0, TILE], [1, x.shape[1]]]))
    nisa.dma_copy(dst=tile[0:1, :], src=x.select(0, at))
    store(out, 0, tile)
    rows = nl.ndarray((TILE, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=index[0:TILE, 0:1])
    gathered = nl.ndarray((TILE, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=gathered, src=x.ap([[x.shape[1], TILE], [1, x.shape[1]]], vector_offset=rows))
    middle = x[TILE : 3 * TILE, :]
    nisa.dma_copy(dst=tile, src=middle.ap([[x.shape[1], TILE], [1, x.shape[1]]], vector_offset=rows))
    nisa.tensor_copy(dst=gathered[:, 0:1], src=tile.select(1, at))
    store(out, 1, gathered)
    again = nisa.register_alloc(5)
    nisa.register_move(dst=at, src=again)
    nisa.register_store(dst=chosen, src=at)
    nisa.dma_copy(dst=index[1:2, 0:1], src=chosen)
    return out


@nki.jit
def device_loop(x):
    """Steps on the device, around a loop that is not."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)

    def step(i):
        for at in range(x.shape[1] // TILE):
            tile = nl.ndarray((TILE, TILE), dtype=x.dtype, buffer=nl.sbuf)
            where = [[x.shape[1], TILE], [1, TILE]]
            rows = x.reshape((x.shape[0] // TILE, TILE * x.shape[1]))
            nisa.dma_copy(dst=tile, src=rows.ap(where, offset=at * TILE, scalar_offset=i))
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
            into = out.reshape((x.shape[0] // TILE, TILE * x.shape[1]))
            nisa.dma_copy(dst=into.ap(where, offset=at * TILE, scalar_offset=i), src=tile)

    nl.fori_loop(0, x.shape[0] // TILE, step)
    return out


@nki.jit
def while_loop(x, count):
    """As often as the device says."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = load(x, 0)
    left = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=count)
    condition = nisa.register_alloc()
    nisa.register_load(dst=condition, src=left)

    def step(register):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=0.5)
        nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1.0)
        following = nisa.register_alloc()
        nisa.register_load(dst=following, src=left)
        return following

    nl.while_loop(condition, step)
    store(out, 0, tile)
    return out


@nki.jit
def scalars(x, index):
    """Arithmetic on what only the device knows, in a list."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    here = nl.ndarray((1, 4), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=index[0:1, 0:4])
    loaded = [nisa.scalar_load(here[0:1, at : at + 1]) for at in range(4)]
    tile = load(x, 0)
    for at in range(4):
        place = 3 - (loaded[at] * 2 - 1) + loaded[0]
        nisa.dma_copy(dst=tile[at : at + 1, :], src=x.select(0, place))
        nisa.scalar_store(here[0:1, at : at + 1], -place)
    nisa.dma_copy(dst=index[0:1, 0:4], src=here)
    store(out, 0, tile)
    return out


@nki.jit
def nested_arguments(operands, scale=2.0):
    """Tensors in a tuple and a dictionary."""
    x, others = operands
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for at in range(x.shape[0] // TILE):
        a, b = load(x, at), load(others["bias"], at)
        nisa.scalar_tensor_tensor(dst=a, data=a, op0=nl.multiply, operand0=scale, op1=nl.add, operand1=b)
        store(out, at, a)
    return out
