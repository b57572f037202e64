"""One toolchain without a GPU for all tests: what it has compiled it keeps. All need the extra triton."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from infra.triton.toolchain import TritonToolchain, open_triton_toolchain
from tests.conftest import need_extra


@pytest.fixture(scope="session")
def on_cpu() -> Iterator[TritonToolchain]:
    toolchain = open_triton_toolchain("h100", on_device=False)
    yield toolchain
    toolchain.close()


class NeedsTriton(pytest.Module):
    """A test module that may import Triton."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        need_extra("triton")
        return super().collect()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return NeedsTriton.from_parent(parent, path=module_path)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.extra("triton"))
