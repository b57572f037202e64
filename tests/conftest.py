"""What a test needs beyond the README's set-up: `@pytest.mark.extra("ray")`, `@pytest.mark.program("chromium")`."""

from __future__ import annotations

import os
import shutil

import pytest

import bootstrap

os.environ.setdefault("NKI_SIM_CHECK", "1")  # every schedule of a test is held against nki_sim.timing.resource_check


def need_extra(name: str) -> None:
    """Skips, with a reason that is counted, where the packages of that extra of pyproject.toml are not installed."""
    if bootstrap.missing(name):
        pytest.skip(f"needs the extra {name}: .venv/bin/pip install -e '.[{name}]'", allow_module_level=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("extra"):
        need_extra(mark.args[0])
    for mark in item.iter_markers("program"):
        if not any(map(shutil.which, mark.args)):
            pytest.skip(f"needs the program {mark.args[0]}")
