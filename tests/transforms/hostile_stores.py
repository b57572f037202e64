"""Kernels that move elements which lie apart, in loops that are not what they seem."""

from __future__ import annotations

from tests.transforms.hostile_kernels import written

_STORES = {
    "stage/plain": """\
b3 = nl.ndarray((128, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
for d in range(4):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t)
return b3
""",
    "stage/closure reads": """\
b3 = nl.ndarray((128, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
T
def peek():
    nisa.dma_copy(dst=out[0:128, 0:32], src=b3[0:128, 0:32, 0])
for d in range(4):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t)
peek()
nisa.dma_copy(dst=out[0:128, 32:128], src=x[0:128, 0:96])
""",
    "stage/closure reads inside": """\
b3 = nl.ndarray((128, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
def peek():
    nisa.dma_copy(dst=out[0:128, 0:32], src=b3[0:128, 0:32, 0])
nisa.dma_copy(dst=b3.reshape((128,128)), src=y[0:128, 0:128])
for d in range(4):
    if d == 0:
        peek()
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t)
nisa.dma_copy(dst=out[0:128, 32:128], src=x[0:128, 0:96])
""",
    "stage/alias in loop": """\
b3 = nl.ndarray((128, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
for d in range(4):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t)
    for a in [b3]:
        nisa.dma_copy(dst=out[0:128, d*32:(d+1)*32], src=a[0:128, 0:32, 0])
""",
    "stage/two stores": """\
b3 = nl.ndarray((128, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
for d in range(4):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t)
    nisa.dma_copy(dst=b3[0:128, 0:32, 3 - d], src=t)
return b3
""",
    "stage/half covered": """\
b3 = nl.ndarray((128, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=b3.reshape((128,128)), src=y[0:128, 0:128])
for d in range(2):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t)
return b3
""",
    "stage/over": """\
b3 = nl.ndarray((128, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=b3.reshape((128,128)), src=y[0:128, 0:128])
for d in range(4):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, 0:32, d // 2], src=t)
return b3
""",
    "stage/reversed": """\
b3 = nl.ndarray((128, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
for d in range(4):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, 0:32, 3 - d], src=t)
return b3
""",
    "stage/branch": """\
b3 = nl.ndarray((128, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=b3.reshape((128,128)), src=y[0:128, 0:128])
for d in range(4):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    if d != 2:
        nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t)
return b3
""",
    "stage/continue": """\
b3 = nl.ndarray((128, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=b3.reshape((128,128)), src=y[0:128, 0:128])
for d in range(4):
    if d == 1:
        continue
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t)
return b3
""",
    "stage/var rebound": """\
b3 = nl.ndarray((128, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=b3.reshape((128,128)), src=y[0:128, 0:128])
for d in range(4):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    d = d // 2
    nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t)
return b3
""",
    "stage/inner rows": """\
b3 = nl.ndarray((2, 64, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
for d in range(4):
    for h in range(2):
        t = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[h*64:(h+1)*64, d*32:(d+1)*32])
        nisa.dma_copy(dst=b3[h, 0:64, 0:32, d], src=t)
return b3
""",
    "stage/inner depends": """\
b3 = nl.ndarray((4, 64, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=b3.reshape((128,256)), src=y[0:128, 0:256])
for d in range(4):
    for h in range(d + 1):
        t = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[h*32:h*32+64, d*32:(d+1)*32])
        nisa.dma_copy(dst=b3[h, 0:64, 0:32, d], src=t)
return b3
""",
    "stage/inner overlapping": """\
b3 = nl.ndarray((64, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
for d in range(4):
    for h in range(2):
        t = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[h*64:(h+1)*64, d*32:(d+1)*32])
        nisa.dma_copy(dst=b3[0:64, 0:32, d], src=t)
return b3
""",
    "stage/stride": """\
b3 = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
for d in range(4):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, d:128:4], src=t)
return b3
""",
    "stage/stride partial": """\
b3 = nl.ndarray((128, 160), dtype=x.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=b3[0:128, 0:160], src=y[0:128, 0:160])
for d in range(4):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, d:125 + d:4], src=t)
return b3
""",
    "stage/stride off": """\
b3 = nl.ndarray((128, 160), dtype=x.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=b3[0:128, 0:160], src=y[0:128, 0:160])
for d in range(3):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, d + 1:126 + d:4], src=t)
return b3
""",
    "stage/dtype": """\
b3 = nl.ndarray((128, 32, 4), dtype=nl.bfloat16, buffer=nl.shared_hbm)
for d in range(4):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t)
return b3
""",
    "stage/dtype int": """\
b3 = nl.ndarray((128, 32, 4), dtype=nl.int32, buffer=nl.shared_hbm)
for d in range(4):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=100.0)
    nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t)
return b3
""",
    "stage/dtype int8": """\
b3 = nl.ndarray((128, 32, 4), dtype=nl.int8, buffer=nl.shared_hbm)
for d in range(4):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=100.0)
    nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t)
return b3
""",
    "stage/later rewritten": """\
b3 = nl.ndarray((128, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
T
nisa.dma_copy(dst=t, src=y[0:128,0:128])
for d in range(4):
    t2 = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t2, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t2)
    nisa.memset(dst=t2, value=7.0)
return b3
""",
    "stage/zero": """\
b3 = nl.ndarray((128, 32, 4), dtype=x.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=b3.reshape((128,128)), src=y[0:128, 0:128])
Z = x.shape[0] - 256
b0 = nl.ndarray((128, 32, Z + 1), dtype=x.dtype, buffer=nl.shared_hbm)
for d in range(Z):
    t = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, d*32:(d+1)*32])
    nisa.dma_copy(dst=b3[0:128, 0:32, d], src=t)
return b3
""",
    "contig/load": """\
t = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
for d in range(2):
    nisa.dma_copy(dst=t, src=x[0:128, d:128:2])
    nisa.dma_copy(dst=out[0:128, d*64:(d+1)*64], src=t)
""",
    "contig/rows stride": """\
t = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
for d in range(2):
    nisa.dma_copy(dst=t, src=x[d:256:2, d:128:2])
    nisa.dma_copy(dst=out[0:128, d*64:(d+1)*64], src=t)
""",
    "contig/param rebound": """\
t = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
x = y
for d in range(2):
    nisa.dma_copy(dst=t, src=x[0:128, d:128:2])
    nisa.dma_copy(dst=out[0:128, d*64:(d+1)*64], src=t)
""",
    "contig/reshape": """\
t = nl.ndarray((64, 128), dtype=x.dtype, buffer=nl.sbuf)
nisa.dma_copy(dst=t, src=x[0:128, 0:128:2])
nisa.dma_copy(dst=out[0:64, 0:128], src=t)
nisa.dma_copy(dst=out[64:128, 0:128], src=t)
""",
    "contig/written param by alias": """\
t = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
s = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
for a in [s]:
    nisa.dma_copy(dst=a[0:128, 0:128:2], src=x[0:128, 0:64])
nisa.dma_copy(dst=t, src=s[0:128, 0:128:2])
nisa.dma_copy(dst=out[0:128, 0:64], src=t)
nisa.dma_copy(dst=out[0:128, 64:128], src=t)
""",
    "contig/store packed": """\
T
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
for d in range(2):
    nisa.dma_copy(dst=out[0:128, d*64:(d+1)*64], src=t[0:128, d:128:2])
""",
    "contig/load strided tile": """\
T
nisa.memset(dst=t, value=0.0)
for d in range(2):
    nisa.dma_copy(dst=t[0:128, d:128:2], src=x[0:128, d*64:(d+1)*64])
nisa.dma_copy(dst=out, src=t)
""",
    "contig/ap": """\
t = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
for d in range(2):
    nisa.dma_copy(dst=t, src=x.ap(pattern=[[256, 128], [2, 64]], offset=d))
    nisa.dma_copy(dst=out[0:128, d*64:(d+1)*64], src=t)
""",
    "contig/ap crossing": """\
t = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
for d in range(2):
    nisa.dma_copy(dst=t, src=x.ap(pattern=[[1, 128], [256, 64]], offset=d))
    nisa.dma_copy(dst=out[0:128, d*64:(d+1)*64], src=t)
""",
    "contig/ap cast": """\
t = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.sbuf)
u = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
for d in range(2):
    nisa.dma_copy(dst=t, src=x[0:128, d:128:2])
    nisa.tensor_copy(dst=u, src=t)
    nisa.dma_copy(dst=out[0:128, d*64:(d+1)*64], src=u)
""",
    "contig/last index": """\
t = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.sbuf)
x3 = x.reshape((128, 128, 4))
for d in range(4):
    t4 = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t4, src=x3[0:128, 0:128, d])
    nisa.dma_copy(dst=out[0:128, d*32:(d+1)*32], src=t4[0:128, 0:32])
""",
}
"""By what they do."""

STORES = {name: written(statements) for name, statements in _STORES.items()}
