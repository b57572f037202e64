"""NKI on a CPU: kernels run numerically right, within the hardware's rules, with a latency.

`install()` makes `import nki` mean this simulator; `trace()` turns a kernel into a `Program`, which
can be executed on arrays and timed on a machine without running any of the kernel's Python again.
"""

import sys
from importlib.util import find_spec

if (
    sys.argv[:1] == ["-m"]
    and (sys.version_info < (3, 10) or not all(find_spec(name) for name in ("numpy", "ml_dtypes")))
    and find_spec("bootstrap")  # not on a host
):
    import bootstrap  # `python -m nki_sim` in a clone, by a Python without its dependencies: it goes on in .venv

    bootstrap.enter(__file__, create=True, module="nki_sim")

import nki_sim.nki  # noqa: F401  # fills the table of instructions, which programs from files need as well
from nki_sim.importing import install
from nki_sim.run import simulate, trace

__version__ = "0.1.0"
__all__ = ["install", "simulate", "trace", "__version__"]
