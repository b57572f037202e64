"""Is this the machine it claims to be? known_hosts read and extended the way OpenSSH does.

Verdicts: a known key passes; a changed or revoked key is always refused; a new key is asked about on a terminal,
or stored when the caller was told to accept new keys. Each refusal is a HostKeyRejected, one line.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from accelopt_core.ports import TargetUnreachable
from infra.ssh.config import Endpoint


class HostKeyRejected(TargetUnreachable):
    """The host's key is unknown, changed or revoked: check the fingerprint with whoever runs the host."""


class HostKey(Protocol):
    """The part of paramiko.PKey that matters here."""

    def get_name(self) -> str: ...

    def asbytes(self) -> bytes: ...


class Terminal(Protocol):
    """A person to ask, or nobody."""

    @property
    def interactive(self) -> bool: ...

    def ask(self, question: str) -> str: ...

    def ask_secret(self, question: str) -> str: ...


@dataclass(frozen=True)
class KnownHost:
    """One line of a known_hosts file."""

    file: Path
    line: int
    marker: str
    """`@revoked`, `@cert-authority` or nothing."""
    names: str
    key_type: str
    key: bytes

    def is_for(self, name: str) -> bool:
        if self.names.startswith("|1|"):
            return _hash_matches(self.names, name)
        matched = False
        for pattern in self.names.lower().split(","):
            negated = pattern.startswith("!")
            if _pattern_matches(pattern[negated:], name):
                if negated:
                    return False
                matched = True
        return matched


def known_keys(endpoint: Endpoint) -> tuple[KnownHost, ...]:
    """Every line of the endpoint's known_hosts files that speaks of this host, certificates' authorities excepted."""
    name = endpoint.known_hosts_name
    return tuple(
        entry
        for file in endpoint.known_hosts_files
        for entry in _entries(file)
        if entry.marker != "@cert-authority" and entry.is_for(name)
    )


def fingerprint(key: HostKey) -> str:
    """As `ssh-keygen -l` prints it: SHA256:<base64 without padding>."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")


def check(endpoint: Endpoint, key: HostKey, *, accept_new: bool, terminal: Terminal) -> None:
    """Return when the key may be trusted; store it when it is new and accepted; raise HostKeyRejected otherwise."""
    entries = known_keys(endpoint)
    offered = (key.get_name(), key.asbytes())
    shown = f"{key.get_name()} {fingerprint(key)}"
    for entry in entries:
        if entry.marker == "@revoked" and (entry.key_type, entry.key) == offered:
            raise HostKeyRejected(
                f"{endpoint.where} offers a revoked host key ({shown}; {entry.file}:{entry.line}): "
                f"not connecting; ask whoever runs the host"
            )
    trusted = [entry for entry in entries if not entry.marker]
    if any((entry.key_type, entry.key) == offered for entry in trusted):
        return
    if trusted:
        # A host whose known types were all asked for first and which offers another one has lost the known key too.
        entry = next((entry for entry in trusted if entry.key_type == offered[0]), trusted[0])
        raise HostKeyRejected(
            f"the host key of {endpoint.where} has CHANGED: {entry.file}:{entry.line} says otherwise "
            f"than {shown}; if the host was reinstalled, run: "
            f"ssh-keygen -R '{endpoint.known_hosts_name}' -f '{entry.file}'"
        )
    if not accept_new:
        if not terminal.interactive:
            raise HostKeyRejected(
                f"{endpoint.where} is not in known_hosts and offers {shown}: compare it with the "
                f"host's own, then connect once with ssh, or pass --accept-new-host-key"
            )
        answer = terminal.ask(f"The host {endpoint.where} is new; its key is {shown}.\nTrust it from now on (yes/no)? ")
        if answer.strip().lower() != "yes":
            raise HostKeyRejected(f"the host key of {endpoint.where} was not accepted")
    _remember(endpoint, key)


def _remember(endpoint: Endpoint, key: HostKey) -> None:
    name = endpoint.known_hosts_name
    if endpoint.hash_known_hosts:
        salt = os.urandom(20)
        digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
        name = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    file = endpoint.known_hosts_files[0]
    line = f"{name} {key.get_name()} {base64.b64encode(key.asbytes()).decode()}\n"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "r+b") as stream:
            size = stream.seek(0, os.SEEK_END)
            if size:
                stream.seek(size - 1)
                if stream.read(1) != b"\n":
                    line = "\n" + line
            stream.write(line.encode())
    except OSError as error:
        raise HostKeyRejected(
            f"the new host key of {endpoint.where} cannot be stored in {file}: {error.strerror}; "
            f"correct its permissions"
        ) from error


def _entries(file: Path) -> Iterator[KnownHost]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostKeyRejected(f"{file} cannot be read: {error.strerror}; correct its permissions") from error
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if len(words) < 3:
            continue
        try:
            key = base64.b64decode(words[2], validate=True)
        except binascii.Error:
            continue  # as OpenSSH does: a line it cannot read vouches for nobody
        yield KnownHost(file, number, marker, words[0], words[1], key)


def _pattern_matches(pattern: str, name: str) -> bool:
    # Only * and ? are special in known_hosts; fnmatch would read [host]:port as a character class.
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        _, _, salt, digest = hashed.split("|")
        expected = base64.b64decode(digest, validate=True)
        return hmac.compare_digest(hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest(), expected)
    except (ValueError, binascii.Error):
        return False
