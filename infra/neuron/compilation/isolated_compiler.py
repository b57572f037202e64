"""Isolates itself and becomes the interpreter that compiles a candidate under a Neuron SDK. Shipped.

Started by `compiling.py` with what to do as its only argument; stdin, stdout and the limits are handed on as they are.
What isolates it is written to a file that the judge opened, before anything of the candidate's runs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> int:
    job = json.loads(sys.argv[1])
    sys.path.insert(0, job["tree"])
    from infra.isolation import linux, namespaces, report, system_calls

    pid, no_namespaces, no_filter = -1, str(job["not_isolated"]), ""
    if job["mounts"] is not None:
        mounts = job["mounts"]
        pid, no_namespaces = namespaces.fork_isolated(
            namespaces.Mounts(
                tuple(Path(path) for path in mounts["visible"]),
                Path(mounts["work"]),
                Path(mounts["mount_point"]),
                tuple(Path(path) for path in mounts["devices"]),
                programs=True,
            )
        )
    if pid > 0:
        os.close(job["report_fd"])
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        system_calls.refuse_system_calls(programs=True)
    except linux.IsolationUnavailable as error:
        no_filter = str(error)
    os.write(job["report_fd"], report.describe(no_namespaces, no_filter, programs=True).encode())
    os.close(job["report_fd"])
    os.execv(job["command"][0], job["command"])


if __name__ == "__main__":
    sys.exit(main())
