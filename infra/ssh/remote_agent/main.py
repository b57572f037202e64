"""The way in: one request, one operation, its frames."""

from __future__ import annotations

import json
import os
import signal

from infra.ssh.remote_agent import checkouts, commands, jobs, leftovers, trees
from infra.ssh.remote_agent.frames import Refused, Wire, take, write_all
from infra.ssh.remote_agent.processes import kill_descendants

_OPERATIONS = {
    "tree_prepare": trees.prepare,
    "tree_receive": trees.receive,
    "job_start": jobs.start,
    "job_follow": jobs.follow,
    "job_kill": jobs.kill,
    "job_collect": jobs.collect,
    "run": commands.run,
    "find_python": commands.find_python,
    "sweep": commands.sweep,
    "discard": commands.discard,
    "clean": leftovers.clean,
    "checkout_look": checkouts.look,
    "checkout_place": checkouts.place,
    "checkout_note_job": checkouts.note_job,
    "checkout_put_back": checkouts.put_back,
}


def main() -> None:
    """Never returns: the listening thread may hold standard input, and a normal exit would wait for it."""
    os.umask(0o077)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    request = json.loads(take(int(take(10))).decode())
    # When nobody listens any more a short command dies too; a detached job is no descendant of this process.
    wire = Wire(request["heartbeat_s"], on_broken=kill_descendants)
    try:
        write_all(1, f"\n{request['token']}\n".encode())  # whatever a log-in script printed ends before this line
        _OPERATIONS[request["op"]](request, wire)
    except Refused as refusal:
        wire.say("refused", code=refusal.code, message=str(refusal))
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        wire.say("refused", code="os", message=f"{error.strerror or error}{where}")
    os._exit(0)
