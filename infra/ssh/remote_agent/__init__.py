"""What runs on the host of an SSH connection. Sent with every request, never installed; standard library only.

It must run on any Python from 3.8, whatever the rest of the project needs. `infra.ssh.runner` sends these files and one
JSON request through the standard input of `python3`; what comes back are frames (frames.py). Standard input stays open
as long as somebody is listening: when it ends, the link is gone.

Below the work directory (`~/.nki-optimizer`): `blobs/<sha256>` is the content of every file ever sent, `trees/<key>/`
files laid out from blobs, `jobs/<id>/` one directory per job: what the job needs, `stdout.log`, `supervisor.json` (who
runs it), and `exit.json`, written last and atomically: where it is, the job is over and every other file complete.
`locks/` keeps two runs of one user from laying out the same tree at the same time. `checkouts/` holds the originals of
files that were replaced in a user's own checkout (checkouts.py).
"""

MODULES = ("frames", "processes", "files", "trees", "jobs", "leftovers", "commands", "checkouts", "main")
"""In the order in which they import each other."""
