"""A language as a distribution of its own, the smallest: its package, and by what an interpreter finds it."""

from __future__ import annotations

from pathlib import Path

KERNEL = "import toy\n\n\ndef kernel(x):\n    return toy.twice(x)\n"
REFERENCE = (
    "import numpy as np\n\nN = 4\n\n\ndef get_inputs():\n    return [np.random.normal(size=(N,)).astype(np.float32)]\n"
    "\n\ndef forward(x):\n    return 2 * x\n"
)

FILES = {
    "nki_optimizer_toy-1.0.dist-info/entry_points.txt": "[nki_optimizer.languages]\ntoy = nki_optimizer_toy:PLUGIN\n",
    "nki_optimizer_toy-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: nki-optimizer-toy\nVersion: 1.0\n",
    "nki_optimizer_toy-1.0.dist-info/RECORD": "nki_optimizer_toy-1.0.dist-info/entry_points.txt,,\n",
    "nki_optimizer_toy/__init__.py": '''
from dataclasses import dataclass
from pathlib import Path

from accelopt_core.languages.plugin import LanguagePlugin
from infra.settings_reader import Group, setting


@dataclass(frozen=True)
class Beads(Group):
    """of the abacus"""

    beads: tuple[int, ...] = setting((), "How many on each wire.", metavar="N,N,...")


def language():
    from nki_optimizer_toy.judging import TOY
    return TOY


def supported():
    from nki_optimizer_toy.judging import SUPPORTED
    return SUPPORTED


PLUGIN = LanguagePlugin(
    "toy", ("abacus",), Path(__file__).parent, language, supported, "nki_optimizer_toy.parts",
    "nki_optimizer_toy.doctor", Beads, (".beads",),
)
''',
    "nki_optimizer_toy/judging.py": """
from dataclasses import dataclass

from accelopt_core.languages.supported import HostNeeds, Supported
from accelopt_core.toolchain import ToolchainMissing


@dataclass(frozen=True)
class Toy:
    key: str = "toy"
    name: str = "Toy"
    core: str = "Wire"
    several_cores: str = ""
    machines: tuple[str, ...] = ("abacus",)
    packages: frozenset[str] = frozenset({"toy"})
    entry_points: tuple[str, ...] = ("kernel",)
    marked: str = "that count"

    def kernels(self, source):
        return ["kernel"]

    def peaks(self, machine):
        return ""

    def forbidden(self, source, neighbours=frozenset()):
        return []

    def notes(self, source):
        return []

    def operators(self, source):
        return ("twice",)


TOY = Toy()


def _open(name, **how):
    raise ToolchainMissing("the abacus is at the mender's")


SUPPORTED = Supported(
    TOY, __name__, _open, lambda data: None, "auto", HostNeeds(("python3",), (("toy",),), "", "an abacus", "buy one"),
    lambda toolchain, request: None,
)
""",
    "nki_optimizer_toy/doctor.py": 'print("no")\n',
    "nki_optimizer_toy/parts.py": "import jinja2\n\nPARTS = None\n",
    "nki_optimizer_toy/seeds/summary.json": '{"double": {"description": "2 x", "kernel": "double/kernel.py", '
    '"reference": "double/reference.py", "tolerance": 1e-5, "precision": "float32-faithful", "presets": {"full": '
    '{"values": {"N": 4}, "work": {"matmul_flops": 0, "vector_ops": 4, "hbm_bytes": 32}}}}}',
    "nki_optimizer_toy/seeds/double/kernel.py": KERNEL,
    "nki_optimizer_toy/seeds/double/reference.py": REFERENCE,
    "nki_optimizer_toy/prompts/words.j2": "toys",
}


def install(folder: Path) -> Path:
    """Into a folder that need only be on the path of an interpreter."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
