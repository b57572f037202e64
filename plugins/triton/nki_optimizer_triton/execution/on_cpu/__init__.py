"""Without a GPU: the kernels' IR executed on arrays. A gate before the device, and no more."""

from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")
