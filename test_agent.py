"""The whole offline suite: no network, no hardware, no keys.   python3 test_agent.py [pytest arguments]

Sets up .venv when it is missing, runs pytest, and closes with one line per area. The exit code is pytest's.
"""

from __future__ import annotations

import bootstrap

if __name__ == "__main__":
    bootstrap.enter(__file__, extra="test", create=True)

    import sys

    from tests.suite_summary import run_suite

    sys.exit(run_suite(bootstrap.ROOT, sys.argv[1:]))
