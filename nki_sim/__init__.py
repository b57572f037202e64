"""NKI on a CPU: kernels run numerically right, within the hardware's rules, with a latency.

`install()` makes `import nki` mean this simulator; `trace()` turns a kernel into a `Program`, which
can be executed on arrays and timed on a machine without running any of the kernel's Python again.
"""

from nki_sim.importing import install
from nki_sim.session import simulate, trace

__version__ = "0.1.0"
__all__ = ["install", "simulate", "trace", "__version__"]
