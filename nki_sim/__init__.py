"""NKI on a CPU: kernels run numerically right, within the hardware's rules, with a latency.

`install()` makes `import nki` mean this simulator; `trace()` turns a kernel into a `Program`, which
can be executed on arrays and timed on a machine without running any of the kernel's Python again.
"""

import sys
from importlib.util import find_spec

_dependencies = ("numpy", "ml_dtypes", "libcst")
_complete = sys.version_info >= (3, 10) and all(find_spec(name) for name in _dependencies)
if sys.argv[:1] == ["-m"] and not _complete and find_spec("bootstrap"):
    import bootstrap  # `python -m nki_sim` in a clone, by a Python without its dependencies: it goes on in .venv

    bootstrap.enter(__file__, create=True, module="nki_sim")

import nki_sim.nki  # noqa: F401  # fills the table of instructions, which programs from files need as well
from nki_sim.importing import install
from nki_sim.run import simulate, trace

__version__ = "0.1.0"
__all__ = ["install", "simulate", "trace", "__version__"]
