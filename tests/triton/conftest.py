"""One toolchain without a GPU for all tests: what it has compiled it keeps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.triton.toolchain import TritonToolchain, open_triton_toolchain


@pytest.fixture(scope="session")
def on_cpu() -> Iterator[TritonToolchain]:
    toolchain = open_triton_toolchain("h100", on_device=False)
    yield toolchain
    toolchain.close()
