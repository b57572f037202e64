"""Kernels with bounds that cut off, and with tiles in objects, generators and lists."""

from __future__ import annotations

from tests.transforms.hostile_kernels import written

_OBJECTS = {
    "bounds/min": """\
T
U
for i in range(3):
    stop = min(i*48+48, 128)
    w = stop - i*48
    t2 = nl.ndarray((128, w), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t2, src=x[0:128, i*48:stop])
    nisa.activation(dst=t2, op=nl.exp, data=t2)
    nisa.dma_copy(dst=out[0:128, i*48:stop], src=t2)
""",
    "bounds/min other": """\
U
nisa.memset(dst=u, value=0.0)
O
for i in range(2):
    stop = min(i*64+64, 96 + i)
    w = stop - i*64
    t2 = nl.ndarray((128, w), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t2, src=x[0:128, i*64:stop])
    nisa.activation(dst=t2, op=nl.exp, data=t2)
    nisa.dma_copy(dst=out[0:128, i*64:stop], src=t2)
""",
    "bounds/quadratic": """\
U
nisa.memset(dst=u, value=0.0)
O
for i in range(4):
    stop = min(i*32+32, i*i*32 + 8)
    w = stop - i*32
    if w > 0:
        t2 = nl.ndarray((128, w), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t2, src=x[0:128, i*32:stop])
        nisa.dma_copy(dst=out[0:128, i*32:stop], src=t2)
""",
    "bounds/outer": """\
U
nisa.memset(dst=u, value=0.0)
O
for j in range(2):
    for i in range(2):
        stop = min(i*32+32, 16 + j*64)
        w = stop - i*32
        if w > 0:
            t2 = nl.ndarray((128, w), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t2, src=x[0:128, i*32:stop])
            nisa.dma_copy(dst=out[0:128, j*64 + i*32:j*64 + stop], src=t2)
""",
    "bounds/neg step": """\
U
nisa.memset(dst=u, value=0.0)
O
for i in range(4):
    stop = min(128 - i*S, 100)
    t2 = nl.ndarray((128, stop), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t2, src=x[0:128, 0:stop])
    nisa.activation(dst=t2, op=nl.exp, data=t2)
    nisa.dma_copy(dst=out[0:128, 0:stop], src=t2)
""",
    "bounds/neg const": """\
U
nisa.memset(dst=u, value=0.0)
O
for i in range(4):
    stop = min(128 + i*NS, 100)
    t2 = nl.ndarray((128, stop), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t2, src=x[0:128, 0:stop])
    nisa.activation(dst=t2, op=nl.exp, data=t2)
    nisa.dma_copy(dst=out[0:128, 0:stop], src=t2)
""",
    "bounds/rebound N": """\
U
nisa.memset(dst=u, value=0.0)
O
N = 128
for i in range(4):
    N = 128 - i*20
    stop = min(i*32+32, N)
    w = stop - i*32
    if w > 0:
        t2 = nl.ndarray((128, w), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t2, src=x[0:128, i*32:stop])
        nisa.dma_copy(dst=out[0:128, i*32:stop], src=t2)
""",
    "bounds/own min": """\
U
nisa.memset(dst=u, value=0.0)
O
for i in range(2):
    stop = MN(i*64+64, 128)
    t2 = nl.ndarray((128, stop), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t2, src=x[0:128, 0:stop])
    nisa.dma_copy(dst=out[0:128, 0:stop], src=t2)
""",
    "bounds/min default": """\
U
nisa.memset(dst=u, value=0.0)
O
for i in range(2):
    stop = min(i*64+64, 96, 128)
    t2 = nl.ndarray((128, stop), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t2, src=x[0:128, 0:stop])
    nisa.dma_copy(dst=out[0:128, 0:stop], src=t2)
""",
    "bounds/leave": """\
U
nisa.memset(dst=u, value=0.0)
O
for i in range(8):
    if i == 2:
        break
    stop = min(i*64+64, 96)
    t2 = nl.ndarray((128, stop - i*64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t2, src=x[0:128, i*64:stop])
    nisa.dma_copy(dst=out[0:128, i*64:stop], src=t2)
""",
    "copy/psum acc": """\
U
p = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
c = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=a, src=x[0:128, 0:128])
nisa.nc_matmul(dst=p, stationary=a, moving=a)
nisa.tensor_copy(dst=c, src=p)
nisa.nc_matmul(dst=p, stationary=a, moving=c)
nisa.tensor_copy(dst=u, src=p)
O
""",
    "copy/self": """\
T
C
U
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=c, src=t)
nisa.tensor_tensor(dst=t, data1=t, data2=c, op=nl.add)
nisa.tensor_tensor(dst=t, data1=t, data2=c, op=nl.multiply)
nisa.dma_copy(dst=out, src=t)
""",
    "copy/loop carried": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
for i in range(3):
    c2 = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=c2, src=t)
    nisa.tensor_scalar(dst=t, data=c2, op0=nl.add, operand0=1.0)
    nisa.tensor_tensor(dst=u, data1=t, data2=c2, op=nl.multiply)
O
""",
    "shadow nl": """\
T
U
nl2 = nl
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.activation(dst=u, op=nl2.exp, data=t)
O
""",
    "kw default mutable": """\
T
U
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
help2(u, t)
O
""",
    "try": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=c, src=t)
try:
    nisa.memset(dst=t, value=0.0)
finally:
    nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "while": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=c, src=t)
i = 0
while i < 2:
    nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
    i += 1
nisa.tensor_tensor(dst=u, data1=t, data2=c, op=nl.multiply)
O
""",
    "comprehension effects": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=c, src=t)
zz = [nisa.memset(dst=a, value=0.0) for a in (t,)]
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "map effects": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=c, src=t)
list(map(lambda a: nisa.memset(dst=a, value=0.0), [t]))
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "partial": """\
T
U
C
from functools import partial
f = partial(nisa.memset, dst=t)
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=c, src=t)
f(value=0.0)
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "isa alias": """\
T
U
C
f = nisa.memset
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=c, src=t)
f(t, 0.0)
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "star args": """\
T
U
C
args = (t, 0.0)
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=c, src=t)
nisa.memset(*args)
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "kw args": """\
T
U
C
args = dict(dst=t, value=0.0)
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=c, src=t)
nisa.memset(**args)
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "hoist changing list": """\
T
U
w = [0]
nisa.memset(dst=u, value=0.0)
for i in range(2):
    t2 = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t2, src=x[0:128, w[0]:w[0]+64])
    nisa.tensor_copy(dst=u[0:128, i*64:(i+1)*64], src=t2)
    w[0] = w[0] + 64
O
""",
    "hoist iter": """\
T
U
w = iter([0, 64])
nisa.memset(dst=u, value=0.0)
for i in range(2):
    o = next(w)
    t2 = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t2, src=x[0:128, o:o+64])
    nisa.tensor_copy(dst=u[0:128, i*64:(i+1)*64], src=t2)
O
""",
    "len of list": """\
T
U
w = []
nisa.memset(dst=u, value=0.0)
for i in range(2):
    t2 = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t2, src=x[0:128, len(w)*64:len(w)*64+64])
    nisa.tensor_copy(dst=u[0:128, i*64:(i+1)*64], src=t2)
    w.append(t2)
O
""",
    "last of list": """\
T
U
w = [0]
nisa.memset(dst=u, value=0.0)
for i in range(2):
    t2 = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t2, src=x[0:128, w[-1]:w[-1]+64])
    nisa.tensor_copy(dst=u[0:128, i*64:(i+1)*64], src=t2)
    w.append(64)
O
""",
    "slots": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
obj = Obj(t)
nisa.tensor_copy(dst=c, src=t)
obj.wipe()
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "slots2": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
obj = Obj(t)
nisa.tensor_copy(dst=c, src=t)
nisa.memset(dst=obj.a, value=0.0)
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "slots3": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
obj = Obj(None)
obj.put(t)
nisa.tensor_copy(dst=c, src=t)
nisa.memset(dst=obj.a, value=0.0)
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "slots4": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
obj = Obj(None)
puts(obj, t)
nisa.tensor_copy(dst=c, src=t)
nisa.memset(dst=obj.a, value=0.0)
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "puts list": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
obj = []
putl(obj, t)
nisa.tensor_copy(dst=c, src=t)
nisa.memset(dst=obj[0], value=0.0)
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "generator": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
g = gen(t)
nisa.tensor_copy(dst=c, src=t)
for q in g:
    pass
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "setattr": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
obj = Obj(None)
setattr(obj, 'a', t)
nisa.tensor_copy(dst=c, src=t)
nisa.memset(dst=obj.a, value=0.0)
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "oper": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
obj = [None]
operator.setitem(obj, 0, t)
nisa.tensor_copy(dst=c, src=t)
nisa.memset(dst=obj[0], value=0.0)
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
}
"""By what they do."""

OBJECTS = {name: written(statements) for name, statements in _OBJECTS.items()}
