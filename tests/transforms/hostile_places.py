"""Kernels whose text names the same width or place twice and means another."""

from __future__ import annotations

from tests.transforms.hostile_kernels import written

_PLACES = {
    "memset/rebound width": """\
T
U
w = 64
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0:w], src=x[0:128, 0:w])
w = 128
nisa.tensor_copy(dst=u[0:128, 0:w], src=t[0:128, 0:w])
O
""",
    "memset/rebound start": """\
T
U
w = 64
nisa.memset(dst=u, value=0.0)
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, w:w+64], src=x[0:128, 0:64])
w = 0
nisa.tensor_copy(dst=u[0:128, w:w+64], src=t[0:128, w:w+64])
O
""",
    "memset/loop leftover": """\
T
U
for i in range(2):
    nisa.memset(dst=u[0:128, i*64:(i+1)*64], value=0.0)
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, i*64:(i+1)*64], src=x[0:128, 0:64])
for i in range(2):
    nisa.tensor_copy(dst=u[0:128, i*64:(i+1)*64], src=t[0:128, i*64:(i+1)*64])
O
""",
    "memset/global width": """\
T
U
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0:W], src=x[0:128, 0:W])
bump()
nisa.tensor_copy(dst=u[0:128, 0:W], src=t[0:128, 0:W])
O
""",
    "memset/list width": """\
T
U
w = [64]
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0:w[0]], src=x[0:128, 0:w[0]])
w[0] = 128
nisa.tensor_copy(dst=u[0:128, 0:w[0]], src=t[0:128, 0:w[0]])
O
""",
    "memset/global list width": """\
T
U
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0:WL[0]], src=x[0:128, 0:WL[0]])
bump()
nisa.tensor_copy(dst=u[0:128, 0:WL[0]], src=t[0:128, 0:WL[0]])
O
""",
    "memset/negative": """\
T
U
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0:128 + NEG], src=x[0:128, 0:128 + NEG])
nisa.tensor_copy(dst=u, src=t)
O
""",
    "memset/negative2": """\
T
U
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0:64 - NEG + NEG2], src=x[0:128, 0:64 - NEG + NEG2])
nisa.tensor_copy(dst=u, src=t)
O
""",
    "memset/negative3": """\
T
U
n = int(-32)
nisa.memset(dst=u, value=0.0)
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0:128 + n], src=x[0:128, 0:128 + n])
nisa.tensor_copy(dst=u[0:128, 0:128], src=t[0:128, 0:128])
O
""",
    "memset/stop negative": """\
T
U
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0:NEG], src=x[0:128, 0:96])
nisa.tensor_copy(dst=u, src=t)
O
""",
    "memset/walrus w": """\
T
U
w = 64
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0:w], src=x[0:128, 0:w])
if (w := 128) > 1:
    pass
nisa.tensor_copy(dst=u[0:128, 0:w], src=t[0:128, 0:w])
O
""",
    "memset/nonlocal w": """\
T
U
w = 64
def f():
    nonlocal w
    w = 128
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0:w], src=x[0:128, 0:w])
f()
nisa.tensor_copy(dst=u[0:128, 0:w], src=t[0:128, 0:w])
O
""",
    "memset/attr w": """\
T
U
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0:CFG.w], src=x[0:128, 0:CFG.w])
CFG.w = 128
nisa.tensor_copy(dst=u[0:128, 0:CFG.w], src=t[0:128, 0:CFG.w])
CFG.w = 64
O
""",
    "memset/pop": """\
T
U
w = [64, 32, 128, 128, 64, 64]
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0:w.pop()], src=x[0:128, 0:w.pop()])
nisa.tensor_copy(dst=u[0:128, 0:w.pop()], src=t[0:128, 0:w.pop()])
O
""",
    "memset/branch": """\
T
U
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=u, src=t)
if x.shape[0] > 1:
    nisa.tensor_copy(dst=u[0:128, 0:64], src=t[0:128, 64:128])
O
""",
    "memset/dims": """\
t = nl.ndarray((128, 2, 64), dtype=x.dtype, buffer=nl.sbuf)
U
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0], src=x[0:128, 0:64])
nisa.tensor_copy(dst=u, src=t.reshape((128,128)))
O
""",
    "memset/step": """\
T
U
nisa.memset(dst=u, value=0.0)
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t[0:128, 0:128:2], src=x[0:128, 0:64])
nisa.tensor_copy(dst=u[0:128, 0:64], src=t[0:128, 0:64])
O
""",
    "memset/rmw": """\
T
U
nisa.memset(dst=t, value=0.5)
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_tensor(dst=t, data1=t, data2=t, op=nl.add)
nisa.tensor_copy(dst=u, src=t)
O
""",
    "memset/two memsets": """\
T
U
nisa.memset(dst=t, value=0.5)
nisa.memset(dst=t[0:128, 0:64], value=0.25)
nisa.dma_copy(dst=t[0:64, 0:128], src=x[0:64, 0:128])
nisa.tensor_copy(dst=u, src=t)
O
""",
    "copy/rebound dtype": """\
dt = nl.float32
t = nl.ndarray((128, 128), dtype=dt, buffer=nl.sbuf)
U
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
dt = nl.bfloat16
c = nl.ndarray((128, 128), dtype=dt, buffer=nl.sbuf)
nisa.tensor_copy(dst=c, src=t)
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "copy/slice rebound": """\
T
U
w = 0
c = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
nisa.memset(dst=u, value=0.0)
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=c, src=t[0:128, w:w+64])
w = 64
nisa.activation(dst=u[0:128, 0:64], op=nl.exp, data=c)
O
""",
    "copy/slice global": """\
T
U
c = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
nisa.memset(dst=u, value=0.0)
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=c, src=t[0:128, W-64:W])
for z in range(1):
    bump()
nisa.activation(dst=u[0:128, 0:64], op=nl.exp, data=c)
O
""",
    "copy/param": """\
C
U
T
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=c, src=t)
nisa.dma_copy(dst=out, src=c)
nisa.memset(dst=t, value=0.0)
""",
    "copy/tile rebinding": """\
T
U
C
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_copy(dst=c, src=t)
T
nisa.memset(dst=t, value=1.0)
nisa.activation(dst=u, op=nl.exp, data=c)
O
""",
    "bcast/param rebound": """\
row = nl.ndarray((1, 128), dtype=x.dtype, buffer=nl.sbuf)
U
nisa.dma_copy(dst=row, src=x[0:1, 0:128])
x = y
t = nl.broadcast_to(row, (128, 128))
nisa.activation(dst=u, op=nl.exp, data=t)
O
""",
    "bcast/other shape": """\
part = nl.ndarray((4, 128), dtype=x.dtype, buffer=nl.sbuf)
row = nl.ndarray((1, 128), dtype=x.dtype, buffer=nl.sbuf)
U
nisa.dma_copy(dst=part, src=z)
nisa.dma_copy(dst=row, src=part[1:2, 0:128])
t = nl.broadcast_to(row, (128, 128))
nisa.activation(dst=u, op=nl.exp, data=t)
O
""",
    "bcast/row written by alias": """\
row = nl.ndarray((1, 128), dtype=x.dtype, buffer=nl.sbuf)
U
nisa.dma_copy(dst=row, src=x[0:1, 0:128])
for a in [row]:
    nisa.memset(dst=a, value=0.0)
t = nl.broadcast_to(row, (128, 128))
nisa.activation(dst=u, op=nl.exp, data=t)
O
""",
    "bcast/scratch": """\
s = nl.ndarray((2, 128), dtype=x.dtype, buffer=nl.shared_hbm)
row = nl.ndarray((1, 128), dtype=x.dtype, buffer=nl.sbuf)
U
for a in [s]:
    nisa.dma_copy(dst=a, src=x[0:2, 0:128])
nisa.dma_copy(dst=row, src=s[0:1, 0:128])
for a in [s]:
    nisa.dma_copy(dst=a, src=x[2:4, 0:128])
t = nl.broadcast_to(row, (128, 128))
nisa.activation(dst=u, op=nl.exp, data=t)
O
""",
    "bcast/global index": """\
row = nl.ndarray((1, 128), dtype=x.dtype, buffer=nl.sbuf)
U
nisa.dma_copy(dst=row, src=x[W:W+1, 0:128])
bump()
t = nl.broadcast_to(row, (128, 128))
nisa.activation(dst=u, op=nl.exp, data=t)
O
""",
    "bcast/global index2": """\
row = nl.ndarray((1, 128), dtype=x.dtype, buffer=nl.sbuf)
U
nisa.dma_copy(dst=row, src=x[WL[0]:WL[0]+1, 0:128])
bump()
t = nl.broadcast_to(row, (128, 128))
nisa.activation(dst=u, op=nl.exp, data=t)
O
""",
    "bcast/list index": """\
row = nl.ndarray((1, 128), dtype=x.dtype, buffer=nl.sbuf)
U
w = [3]
nisa.dma_copy(dst=row, src=x[w[0]:w[0]+1, 0:128])
w[0] = 5
t = nl.broadcast_to(row, (128, 128))
nisa.activation(dst=u, op=nl.exp, data=t)
O
""",
    "bcast/loop var leftover": """\
row = nl.ndarray((1, 128), dtype=x.dtype, buffer=nl.sbuf)
U
for i in range(3):
    nisa.dma_copy(dst=row, src=x[i:i+1, 0:128])
t = nl.broadcast_to(row, (128, 128))
nisa.activation(dst=u, op=nl.exp, data=t)
O
""",
    "keep/rebound height": """\
s = nl.ndarray((256, 128), dtype=x.dtype, buffer=nl.shared_hbm)
U
P = 128
nisa.memset(dst=u, value=0.0)
for i in range(2):
    t = nl.ndarray((P, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[i*P:(i+1)*P, 0:128])
    nisa.dma_copy(dst=s[i*P:(i+1)*P, 0:128], src=t)
P = 64
for i in range(2):
    nisa.dma_copy(dst=u[i*P:(i+1)*P, 0:128], src=s[i*P:(i+1)*P, 0:128])
O
""",
    "keep/rebound height 2": """\
P = 128
s = nl.ndarray((256, 128), dtype=x.dtype, buffer=nl.shared_hbm)
U
nisa.memset(dst=u, value=0.0)
for i in range(2):
    t = nl.ndarray((P, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[i*P:(i+1)*P, 0:128])
    nisa.dma_copy(dst=s[i*P:(i+1)*P, 0:128], src=t)
P = 64
for i in range(2):
    v = nl.ndarray((P, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=v, src=s[i*P:(i+1)*P, 0:128])
    nisa.dma_copy(dst=out[i*P:(i+1)*P, 0:128], src=v)
""",
    "keep/global height": """\
s = nl.ndarray((256, 128), dtype=x.dtype, buffer=nl.shared_hbm)
W2()
for i in range(2):
    t = nl.ndarray((H, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[i*H:(i+1)*H, 0:128])
    nisa.dma_copy(dst=s[i*H:(i+1)*H, 0:128], src=t)
halve()
for i in range(2):
    v = nl.ndarray((H, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=v, src=s[i*H:(i+1)*H, 0:128])
    nisa.dma_copy(dst=out[i*H:(i+1)*H, 0:128], src=v)
""",
    "keep/loop height": """\
s = nl.ndarray((4, 4, 128), dtype=x.dtype, buffer=nl.shared_hbm)
U
nisa.memset(dst=u, value=0.0)
for i in range(4):
    t = nl.ndarray((i + 1, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:i+1, 0:128])
    nisa.dma_copy(dst=s[i, 0:i+1, 0:128], src=t)
for i in range(4):
    nisa.dma_copy(dst=u[0:i+1, 0:128], src=s[i, 0:i+1, 0:128])
O
""",
    "keep/alias": """\
s = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
T
U
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.dma_copy(dst=s[0:128, 0:128], src=t)
for a in [s]:
    nisa.dma_copy(dst=a, src=y[0:128, 0:128])
nisa.dma_copy(dst=u, src=s[0:128, 0:128])
O
""",
    "keep/returned by alias": """\
s = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
T
U
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.dma_copy(dst=s[0:128, 0:128], src=t)
nisa.dma_copy(dst=u, src=s[0:128, 0:128])
O
BOX.append(s)
return BOX.pop()
""",
    "keep/reshape dma": """\
s = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
t = nl.ndarray((64, 256), dtype=x.dtype, buffer=nl.sbuf)
U
nisa.dma_copy(dst=t, src=x[0:64, 0:256])
nisa.dma_copy(dst=s[0:128, 0:128], src=t)
nisa.dma_copy(dst=u, src=s[0:128, 0:128])
O
""",
    "keep/reshape dma3": """\
s = nl.ndarray((2, 64, 2, 64), dtype=x.dtype, buffer=nl.shared_hbm)
t = nl.ndarray((64, 128), dtype=x.dtype, buffer=nl.sbuf)
U
for i in range(2):
    nisa.dma_copy(dst=t, src=x[i*64:i*64+64, 0:128])
    nisa.dma_copy(dst=s[i, 0:64, 0:2, 0:64], src=t)
for i in range(2):
    v = nl.ndarray((64, 2, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=v, src=s[i, 0:64, 0:2, 0:64])
    nisa.dma_copy(dst=out[i*64:i*64+64, 0:128], src=v)
""",
    "keep/cast": """\
s = nl.ndarray((128, 128), dtype=nl.bfloat16, buffer=nl.shared_hbm)
T
U
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.dma_copy(dst=s[0:128, 0:128], src=t)
nisa.dma_copy(dst=u, src=s[0:128, 0:128])
O
""",
    "keep/cast int": """\
s = nl.ndarray((128, 128), dtype=nl.int32, buffer=nl.shared_hbm)
T
U
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=100.0)
nisa.dma_copy(dst=s[0:128, 0:128], src=t)
nisa.dma_copy(dst=u, src=s[0:128, 0:128])
O
""",
    "split/define moved": """\
T
U
o = 0
nisa.dma_copy(dst=t, src=x[o:o+128, 0:128])
o = 128
nisa.dma_copy(dst=u, src=x[o:o+128, 0:128])
nisa.tensor_tensor(dst=u, data1=t, data2=u, op=nl.subtract)
O
""",
    "split/define moved2": """\
T
U
o = 0
nisa.dma_copy(dst=t, src=x[0:128, o:o+128])
o = 128
nisa.dma_copy(dst=u, src=x[0:128, o:o+128])
nisa.tensor_tensor(dst=u, data1=t, data2=u, op=nl.subtract)
O
""",
    "split/alloc rebound": """\
T
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
a = t
T
nisa.dma_copy(dst=t, src=y[0:128, 0:128])
nisa.tensor_tensor(dst=t, data1=a, data2=t, op=nl.subtract)
nisa.dma_copy(dst=out, src=t)
""",
    "split/alias": """\
T
U
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.dma_copy(dst=u, src=y[0:128, 0:128])
for a in [t]:
    b = a
nisa.tensor_copy(dst=u[0:128, 0:128], src=b[0:128, 0:128])
O
""",
    "split/shifted alias": """\
T
U
for a in [t]:
    b = a
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.memset(dst=u, value=0.0)
nisa.tensor_copy(dst=u, src=b)
O
""",
    "split/hbm cols": """\
T
U
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.dma_copy(dst=out, src=t)
nisa.dma_copy(dst=u[0:128, 0:128], src=out[0:128, 0:128])
nisa.tensor_scalar(dst=u, data=u, op0=nl.add, operand0=u[0:128, 0:1])
O
""",
    "split/bias written": """\
T
U
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.activation(dst=u, op=nl.exp, data=t, bias=t[0:128, 127:128])
O
""",
    "split/perm": """\
t = nl.ndarray((64, 2, 128), dtype=x.dtype, buffer=nl.sbuf)
U
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.activation(dst=t, op=nl.exp, data=t)
nisa.dma_copy(dst=out, src=t)
""",
}
"""Widths, places, dtypes and shapes that are not what they were."""

PLACES = {name: written(statements) for name, statements in _PLACES.items()}
