"""With a GPU: cubins loaded and launched through CUDA's driver interface, verified and timed."""

from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")
