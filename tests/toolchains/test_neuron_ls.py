"""What neuron-ls lists, asked as its version is documented to be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accelopt_core.toolchain import ToolchainMissing
from infra.neuron.packages import list_devices
from tests.toolchains.pretend_sdk import PretendSdk

ROW = {"neuron_device": 3, "nc_count": 2, "memory_size": 1 << 30}


@pytest.mark.parametrize(
    ("release", "asked", "under"),
    [((2, 33), "neuron-ls --json-output", ""), ((2, 34), "neuron-ls --output-format json", "'devices'")],
)
def test_devices_are_asked_for_with_the_flag_that_help_lists(tmp_path, release, asked, under) -> None:
    listing = list_devices(PretendSdk(tmp_path, release=release, only_documented=True).installation)
    assert [device.core_ids for device in listing.devices] == [(0, 1, 2, 3)]
    assert (listing.asked, under in listing.undocumented, bool(listing.undocumented)) == (asked, True, bool(under))


def _installed(tmp_path: Path, script: str) -> PretendSdk:
    sdk = PretendSdk(tmp_path)
    (sdk.tools / "neuron-ls").write_text(f"#!/bin/sh\n{script}\n")
    return sdk


def test_where_help_names_no_flag_both_are_tried(tmp_path: Path) -> None:
    rows = json.dumps({"instance": "x", "found": [ROW]})
    sdk = _installed(tmp_path, f"[ \"$1\" = --output-format ] || exit 2\necho '{rows}'")
    listing = list_devices(sdk.installation)
    assert (listing.devices[0].number, listing.devices[0].core_ids) == (3, (0, 1))
    assert listing.undocumented == "neuron-ls --output-format json: devices are under 'found'"


@pytest.mark.parametrize("printed", [{"instance": {}}, {"devices": []}, {"devices": [1]}, [1], 7])
def test_a_layout_without_devices_is_an_error_that_names_every_question(tmp_path: Path, printed: object) -> None:
    sdk = _installed(tmp_path, f"echo '{json.dumps(printed)}'")
    with pytest.raises(ToolchainMissing, match="neuron-ls --json-output .*; neuron-ls --output-format json ") as error:
        list_devices(sdk.installation)
    assert "\n" not in str(error.value)
