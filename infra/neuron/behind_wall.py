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

    pid, no_namespaces, no_filter = -1, str(job["no_room"]), ""
    if job["room"] is not None:
        room = job["room"]
        pid, no_namespaces = wall.fork_behind_wall(
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
    try:
        wall.refuse_system_calls(programs=True)
    except wall.NoWall as error:
        no_filter = str(error)
    os.write(job["report_fd"], wall.describe(no_namespaces, no_filter, programs=True).encode())
    os.close(job["report_fd"])
    os.execv(job["command"][0], job["command"])


if __name__ == "__main__":
    sys.exit(main())
