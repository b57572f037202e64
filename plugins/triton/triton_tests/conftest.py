"""One toolchain without a GPU for all tests: what it has compiled it keeps. All need Triton, and the plugin installed:
pip install -e plugins/triton"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from nki_optimizer_triton.toolchain import TritonToolchain, open_triton_toolchain


@pytest.fixture(scope="session")
def on_cpu() -> Iterator[TritonToolchain]:
    toolchain = open_triton_toolchain("h100", on_device=False)
    yield toolchain
    toolchain.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Before a module that may import Triton."""
    if find_spec("triton") is None:
        pytest.skip("needs the program Triton, which Linux has", allow_module_level=True)
