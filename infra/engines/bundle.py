"""Our tree as one archive, named by its hash: what a node of a cluster is sent, once."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from dataclasses import dataclass

import numpy

from infra.judging.shipment import files_to_ship

_STARTED_THERE = ("infra/engines/agent.py", "infra/prediction/worker.py")
"""Beside the judge and the doctor."""


@dataclass(frozen=True)
class Bundle:
    key: str
    """SHA-256 of `data`, in hexadecimal; the same files come to the same."""
    data: bytes
    """A tar archive of files only, uncompressed."""
    python: str
    """Major and minor version that a node must have."""
    numpy: str
    """Major version."""


def bundle() -> Bundle:
    """Of this tree, as it is on disk now."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, path in files_to_ship(also=_STARTED_THERE).items():
            data = path.read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    data = out.getvalue()
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return Bundle(hashlib.sha256(data).hexdigest(), data, python, numpy.__version__.partition(".")[0])
