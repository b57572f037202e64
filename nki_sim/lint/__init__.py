"""The dialect linter: what the NKI compiler rejects although Python (and so the simulator) runs it.

`check_source(source, version)` parses a kernel file, without running it, and returns findings. A rule is
one function in `syntax_rules`, `name_rules`, `known_issues`, `tracing_rules` or `hint_rules`, registered with the NKI
versions it holds for.
"""

from nki_sim.lint.checking import check_source, valid_in
from nki_sim.lint.findings import COMMON, LAST_PARSED, LATEST, VERSIONS, Finding
from nki_sim.lint.rules import RULES

__all__ = ["COMMON", "LAST_PARSED", "LATEST", "RULES", "VERSIONS", "Finding", "check_source", "valid_in"]
