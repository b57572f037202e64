"""Lay a set of files out from content-addressed blobs, exactly: no file more, no byte different."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from typing import Any

from infra.ssh.remote_agent.files import (
    inside,
    locked,
    read_bounded,
    remove_tree,
    sha256_of,
    work_directory,
    write_atomically,
)
from infra.ssh.remote_agent.frames import Refused, Wire, take
from infra.ssh.remote_agent.processes import Watched, environment

_COMPILE_TIMEOUT_S = 300.0
_LARGEST_BLOB_BYTES = 1 << 31


def prepare(request: dict[str, Any], wire: Wire) -> None:
    """Say which blobs are missing; when none is, lay the tree out and say what it came to."""
    root = work_directory(request)
    missing = [
        sha for sha in sorted(set(request["files"].values())) if not os.path.exists(os.path.join(root, "blobs", sha))
    ]
    if missing:
        wire.say("missing", root=root, shas=missing, free_bytes=shutil.disk_usage(root).free)
    else:
        _lay_out(root, request, wire)


def receive(request: dict[str, Any], wire: Wire) -> None:
    """Take a pack apart, an uploaded one or one that follows on standard input, proving each blob; lay the tree out."""
    root = work_directory(request)
    if request["pack"] is None:
        for sha, size in request["index"]:
            _keep(root, sha, size, take(size), wire)
    else:
        pack = inside(os.path.join(root, "incoming"), request["pack"])
        try:
            with open(pack, "rb") as stream:
                for sha, size in request["index"]:
                    _keep(root, sha, size, stream.read(size), wire)
        finally:
            if os.path.exists(pack):
                os.unlink(pack)
    _lay_out(root, request, wire)


def _keep(root: str, sha: str, size: int, data: bytes, wire: Wire) -> None:
    if hashlib.sha256(data).hexdigest() != sha:
        raise Refused("damaged", f"an uploaded file arrived damaged ({len(data)} of {size} bytes, {sha})")
    write_atomically(os.path.join(root, "blobs", sha), data)
    wire.beat()


def digest_of(tree: str) -> str:
    """One hash over every name and byte below `tree`, bytecode included; a link counts as what it says."""
    total = hashlib.sha256()
    for folder, names, leaves in os.walk(tree):
        names.sort()
        for name in sorted(leaves + [name for name in names if os.path.islink(os.path.join(folder, name))]):
            path = os.path.join(folder, name)
            content = f"-> {os.readlink(path)}" if os.path.islink(path) else sha256_of(path)
            total.update(f"{os.path.relpath(path, tree)}\0{content}\0".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _lay_out(root: str, request: dict[str, Any], wire: Wire) -> None:
    tree = inside(os.path.join(root, "trees"), request["key"])
    with locked(root, request["key"], True, wire.beat):
        digest = _fill(root, tree, request, wire)
    wire.say("tree", root=root, path=tree, digest=digest)


def _fill(root: str, tree: str, request: dict[str, Any], wire: Wire) -> str:
    """The digest of what is there when it is done."""
    files = request["files"]
    os.makedirs(tree, mode=0o700, exist_ok=True)
    _prune(tree, files)
    for name, sha in files.items():
        path = inside(tree, name)
        blob = os.path.join(root, "blobs", sha)
        if not os.path.isfile(path) or sha256_of(path) != sha:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            data = read_bounded(blob, _LARGEST_BLOB_BYTES)
            if data is None or hashlib.sha256(data).hexdigest() != sha:
                remove_tree(blob)
                raise Refused("damaged", f"{blob} is damaged")
            write_atomically(path, data, 0o400)
        os.utime(path, (10**9, 10**9))  # always the same, so that the bytecode, which records it, is the same too
        os.utime(blob)  # in use: not to be swept
        wire.beat()
    python = request["compile_with"]
    if python:
        compiling = Watched(
            [python, "-I", "-m", "compileall", "-q", "-f", tree], environment({}), tree, lambda data: None
        )
        if compiling.wait(_COMPILE_TIMEOUT_S, tick=wire.beat) != 0:
            words = " ".join(compiling.stderr_tail.decode("utf-8", "replace").split())[-500:]
            raise Refused("cannot_compile", f"{python} cannot compile the files sent: {words}")
    os.utime(tree)
    return digest_of(tree)


def _prune(tree: str, files: Mapping[str, str]) -> None:
    """Remove whatever the manifest does not name: a planted module would be imported before the real one."""
    folders = {""}
    for name in files:
        parts = name.split("/")[:-1]
        folders.update("/".join(parts[: depth + 1]) for depth in range(len(parts)))
    sources = {name[: -len(".py")] for name in files if name.endswith(".py")}
    for folder, names, leaves in os.walk(tree):
        relative = os.path.relpath(folder, tree)
        prefix = "" if relative == "." else relative + "/"
        in_cache = os.path.basename(folder) == "__pycache__"
        for name in list(names):
            known = prefix + name in folders or name == "__pycache__"
            if not known or os.path.islink(os.path.join(folder, name)):
                names.remove(name)
                remove_tree(os.path.join(folder, name))
        for name in leaves:
            compiled = (
                in_cache
                and name.endswith(".pyc")
                and prefix[: -len("__pycache__/")] + name.partition(".")[0] in sources
            )
            if os.path.islink(os.path.join(folder, name)) or not (prefix + name in files or compiled):
                os.unlink(os.path.join(folder, name))
