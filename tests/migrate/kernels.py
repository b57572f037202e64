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


def check_form(form: str) -> None:
    """Of a table of forms: `name | shapes | text that the new kernel has | !text that it has not`, then the kernel."""
    head, _, body = form.partition("\n")
    _, shapes, *said = head.split(" | ")
    arguments = [normal(*map(int, shape.split("x"))) for shape in shapes.split(" ")]
    body = body.replace("OUT\n", "out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n")
    new = migrated(body, *arguments, parameters="x, w" if len(arguments) > 1 else "x")
    assert all((text.removeprefix("!") in new) != text.startswith("!") for text in said), new
