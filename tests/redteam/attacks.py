"""Hostile candidates: each runs its trick when it is read in, and then offers a kernel that computes something else.

Whoever is measured has been accepted, since the kernel behind the trick subtracts where it should add.
"""

from __future__ import annotations

from tests.e2e import kernels

SECRET = "sk-of-the-orchestrator"
"""In the environment of the process that starts the judge; a candidate that shows it has read it."""

PROGRAM = "sleep 98765.4321"
"""What candidates start that would like to stay."""

EVERY_FILE = """
import os
def everywhere(data):
    for fd in range(3, 1024):
        try:
            os.lseek(fd, 0, 0)
            os.write(fd, data)
        except OSError:
            pass
def programs(data):
    everywhere(len(data).to_bytes(8, "little") + data)
"""

ATTACKS: dict[str, str] = {
    # --- using up the machine ---
    "infinite loop": "while True: pass",
    "infinite loop that ignores signals": """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""",
    "fork bomb": "import os\nwhile True: os.fork()",
    "thread bomb": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(1e6,)).start()",
    "memory bomb": "kept = []\nwhile True: kept.append(bytearray(1 << 28))",
    "disk filler": """
number = 0
while True:
    with open(f"fill-{number}", "wb") as file: file.write(bytes(1 << 26))
    number += 1
""",
    "one huge file": "with open('fill', 'wb') as file:\n    while True: file.write(bytes(1 << 26))",
    "endless output": "while True: print('x' * 1_000_000)",
    "bottomless recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "raised limits": """
import resource
for which in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU):
    resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
""",
    # --- other processes ---
    "signal to the parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "signal to everybody": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "signal to the process group": "import os, signal\nos.killpg(0, signal.SIGKILL)",
    "a daemon that stays": f"""
import os
if os.fork() == 0:
    os.setsid()
    os.execvp("sleep", {PROGRAM.split()})
""",
    "a program that stays": f"import subprocess\nsubprocess.Popen({PROGRAM.split()}, start_new_session=True)",
    "another program in its place": f"import os\nos.execvp('sleep', {PROGRAM.split()})",
    "threads left running": """
import threading
def spin():
    while True: pass
for _ in range(8): threading.Thread(target=spin).start()
""",
    "work at the end of the process": "import atexit\natexit.register(lambda: [None for _ in iter(int, 1)])",
    "the environment of other processes": """
import glob
found = b"".join(open(name, "rb").read() for name in glob.glob("/proc/[0-9]*/environ"))
raise ValueError(found.decode("utf-8", "replace"))
""",
    "the memory of the parent": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, os.getppid(), None, None) != 0: raise OSError(ctypes.get_errno(), "ptrace")
""",
    "the network": "import socket\nsocket.create_connection(('127.0.0.1', 22), 1)",
    # --- other files ---
    "a result of its own": """
import glob, json
for folder in glob.glob("/tmp/nki-judge-*/job-*") + glob.glob("../../nki-judge-*/job-*"):
    verdict = {"version": 1, "nonce": "", "evaluation": {"kind": "measured"}}
    open(folder + "/result.json", "w").write(json.dumps(verdict))
""",
    "references of its own": """
import glob
for name in glob.glob("/tmp/nki-judge-*/references/*"): open(name, "wb").write(b"")
""",
    "the simulator's files": """
import nki_sim.timing.cost
open(nki_sim.timing.cost.__file__, "a").write("\\nraise SystemExit\\n")
""",
    "links out of the folder": """
import os
os.symlink("/etc", "etc")
for name in ("kernel.program", "failure.json", "out"):
    os.symlink("/dev/zero", name)
os.rename("out", "candidate.py")
""",
    "a loaded pickle": "import numpy as np\nnp.save('x.npy', np.array([object()], object), allow_pickle=True)\n"
    "raise ValueError(np.load('x.npy', allow_pickle=True))",
    # --- speaking for the judge ---
    "a spoofed verdict": """
print('{"step": "benchmark", "detail": "ok"}', flush=True)
print('{"version": 1, "evaluation": {"kind": "measured"}}', flush=True)
""",
    "the success line": "print('compiled: True runnable: True correct: True latency: 0.001', flush=True)",
    "leaving with success": "import os\nos._exit(0)",
    "SystemExit with success": "raise SystemExit(0)",
    "garbage for a program": EVERY_FILE + "programs(b'garbage' * 1000)\nos._exit(0)",
    "a program with an impossible header": EVERY_FILE + "programs(b'NKIPROG\\n' + b'\\xff' * 8)\nos._exit(0)",
    "a program that claims terabytes": EVERY_FILE
    + """
import json
text = json.dumps({"version": 5, "arrays": [["template_ids", "<i4", [1 << 45]], ["operand_starts", "<i8", [1 << 45]]]})
programs(b"NKIPROG\\n" + len(text).to_bytes(8, "little") + text.encode())
os._exit(0)
""",
    "a program of nothing but brackets": EVERY_FILE
    + "programs(b'NKIPROG\\n' + (10**6).to_bytes(8, 'little') + b'[' * 10**6)\nos._exit(0)",
    "a huge program": EVERY_FILE
    + """
for fd in range(3, 64):
    try:
        while True: os.write(fd, bytes(1 << 26))
    except OSError:
        pass
os._exit(0)
""",
    "a compressed bomb": EVERY_FILE
    + """
import io, zipfile
packed = io.BytesIO()
with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive: archive.writestr("a.npy", bytes(1 << 27))
programs(packed.getvalue())
os._exit(0)
""",
    "a failure of nothing but brackets": EVERY_FILE + "everywhere(b'[' * 60000)\nos._exit(1)",
    # --- changing the tools ---
    "another NumPy": """
import numpy as np
np.linalg.norm = lambda *a, **k: 0.0
np.square = np.sum = lambda *a, **k: np.float64(0)
np.allclose = np.array_equal = lambda *a, **k: True
""",
    "another clock": "import time\ntime.perf_counter = time.monotonic = time.time = lambda: 0.0",
    "another tracer": """
from nki_sim.tracing.session import Tracer
emit = Tracer.emit
def forgetful(self, opcode, *rest, **named):
    if opcode.name != "tensor_tensor": return emit(self, opcode, *rest, **named)
Tracer.emit = forgetful
""",
    "another price list": """
import nki_sim.timing.cost, nki_sim.profile.profile
nki_sim.timing.cost.cost = nki_sim.profile.profile.cost = lambda *a, **k: 0
""",
    "another function's code": """
from nki_sim.encoding import program_file
program_file.dumps.__code__ = (lambda program: b"").__code__
""",
    "the judge's frames": """
import sys
frame = sys._getframe()
while frame is not None:
    for value in list(frame.f_locals.values()):
        if isinstance(value, dict):
            value.update(tolerance=1e9, seeds=[])
    frame = frame.f_back
""",
    "what the collector knows": """
import gc
for value in gc.get_objects():
    if type(value).__name__ in ("Reference", "EvaluationRequest", "Task"): raise ValueError(repr(value))
""",
    "the known seeds": """
import numpy as np
np.random.seed(0)
KNOWN = [np.random.normal(size=(128, 512)).astype(np.float32) for _ in range(2)]
""",
}

ADD = "nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)"
ON_CHIP = "buffer=nl.sbuf"
KERNELS: dict[str, str] = {
    "zeros": kernels.FAST.replace(ADD, "nisa.memset(dst=c, value=0.0)"),
    "ones": kernels.FAST.replace(ADD, "nisa.memset(dst=c, value=1.0)"),
    "memory that was never written": kernels.FAST.replace(f"            {ADD}\n", ""),
    "numbers of its own": kernels.FAST.replace(ADD, "nisa.iota(dst=c, pattern=[[1, STEP]], channel_multiplier=3)"),
    "its input": kernels.FAST.replace("src=c)", "src=a)"),
    "half of the work": kernels.FAST.replace("n // STEP", "n // STEP // 2").replace("STEP = 2048", "STEP = 256"),
    "bfloat16 arithmetic": kernels.FAST.replace(f"dtype=x.dtype, {ON_CHIP}", f"dtype=nl.bfloat16, {ON_CHIP}"),
}
"""Tricks in the kernel itself."""


def source_of(name: str) -> str:
    return KERNELS[name] if name in KERNELS else ATTACKS[name] + "\n" + STEP_512


STEP_512 = kernels.WRONG.replace("STEP = 2048", "STEP = 512")
KERNELS = {name: text.replace("STEP = 2048", "STEP = 512") for name, text in KERNELS.items()}
NAMES = (*ATTACKS, *KERNELS)
