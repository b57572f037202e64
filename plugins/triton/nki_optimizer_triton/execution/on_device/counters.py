"""Why the GPU's hardware counters are not read: they are, where at all, for administrators and by NVIDIA's own tools.

Nothing here reads them. What is known of a kernel without them is in `profile.py`; this says, of one
machine, whether somebody could read them by hand (`ncu`).
Source: NVIDIA, "ERR_NVGPUCTRPERM: Permission issue with Performance Counters" (RmProfilingAdminOnly).
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

PARAMETERS = Path("/proc/driver/nvidia/params")


def why_no_counters(parameters: Path = PARAMETERS, administrator: bool | None = None) -> str:
    """One line. `administrator`: whether this process is one; None: as it is."""
    is_root = os.geteuid() == 0 if administrator is None else administrator
    try:
        text = parameters.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"whether hardware counters may be read is not known: {parameters} cannot be read"
    found = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", text, re.MULTILINE)
    if found is None or (found.group(1) != "0" and not is_root):
        return "hardware counters are for administrators here (RmProfilingAdminOnly)"
    if shutil.which("ncu") is None:
        return "hardware counters may be read here, but Nsight Compute (ncu) is not installed"
    return "hardware counters may be read here by hand, with ncu: this program does not"
