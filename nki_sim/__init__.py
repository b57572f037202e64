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

from typing import TYPE_CHECKING, Any

from nki_sim.tracing.importing import install

if TYPE_CHECKING:
    from nki_sim.nki.run import simulate, trace

__version__ = "0.1.0"
__all__ = ["VERSIONS", "install", "simulate", "trace", "__version__"]

VERSIONS = ("0.2", "0.3", "0.4", "0.5", "0.6", "0.7")
"""Of NKI; SDK 2.27/2.28 is 0.2, and each SDK release after it one more, up to 2.33 with 0.7."""


def __getattr__(name: str) -> Any:
    """Loads what runs kernels, and NumPy with it, once it is asked for: `--help` is answered without."""
    if name in ("simulate", "trace"):
        from nki_sim.nki import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
