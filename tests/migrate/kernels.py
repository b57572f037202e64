"""Small kernels of NKI 0.1 to migrate, and what every test does with one."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from nki_sim.migrate import proving
from nki_sim.migrate.beta1_to_current import migrate_beta1
from nki_sim.migrate.report import Migration

HEAD = """\
import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl

"""


def beta1(body: str, parameters: str = "x", decorator: str = "@nki.jit") -> str:
    """A module with one kernel."""
    head = f"{HEAD}{decorator}\ndef kernel({parameters}):\n"
    return head + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


def migrated(body: str, *arguments: Any, parameters: str = "x", **keywords: Any) -> str:
    """The new source of a kernel that has to migrate by itself and be equal."""
    migration = attempt(body, *arguments, parameters=parameters, **keywords)
    assert not migration.left, "\n".join(map(str, migration.left)) + "\n" + migration.source
    assert migration.proven, migration.proof
    return migration.source


def computed(source: str, *arguments: Any, **keywords: Any) -> Any:
    """What a migrated kernel gives."""
    return proving.run_new(source, "kernel", arguments, keywords)


def attempt(body: str, *arguments: Any, parameters: str = "x", **keywords: Any) -> Migration:
    return migrate_beta1(beta1(body, parameters), "kernel", list(arguments), keywords)
