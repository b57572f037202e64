"""`import nki_sim` where the optimizer is installed: a wheel has this file as `nki_sim/__init__.py`.

The simulator itself lies in the optimizer's tree, from where it travels to hosts; this puts it in its own place.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1] / "nki_optimizer" / "tree" / "nki_sim"

_spec = spec_from_file_location("nki_sim", _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)])
assert _spec is not None and _spec.loader is not None
_simulator = module_from_spec(_spec)
sys.modules["nki_sim"] = _simulator
_spec.loader.exec_module(_simulator)
