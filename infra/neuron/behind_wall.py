"""Goes behind the wall and becomes the interpreter that compiles a candidate under a Neuron SDK. Shipped.

Started by `compiling.py` with what to do as its only argument; stdin, stdout and the limits are handed on as they are.
What kind of wall there is goes into a file that the judge opened, before anything of the candidate's runs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> int:
    job = json.loads(sys.argv[1])
    sys.path.insert(0, job["tree"])
    from infra import wall

    said = []
    pid, refused = -1, str(job["no_room"])
    if job["room"] is not None:
        room = job["room"]
        pid, refused = wall.fork_behind_wall(
            wall.Room(
                tuple(Path(path) for path in room["visible"]),
                Path(room["work"]),
                Path(room["hung_on"]),
                tuple(Path(path) for path in room["devices"]),
                programs=True,
            )
        )
    if pid > 0:
        os.close(job["report_fd"])
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    said.append("namespaces of its own" if pid == 0 else f"no namespaces ({refused})")
    try:
        wall.refuse_system_calls(programs=True)
        said.append("no tracing, no mounts, no other namespaces")
    except wall.NoWall as error:
        said.append(f"no filter of system calls ({error})")
    os.write(job["report_fd"], ", ".join(said).encode())
    os.close(job["report_fd"])
    os.execv(job["command"][0], job["command"])


if __name__ == "__main__":
    sys.exit(main())
