"""Every schedule that a test makes is checked against the definition: nki_sim.resource_check."""

from __future__ import annotations

import os

os.environ.setdefault("NKI_SIM_CHECK", "1")
