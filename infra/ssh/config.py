"""From what a person types (`ubuntu@10.0.0.1`, an alias) to where exactly to connect, as ~/.ssh/config says.

Raises TargetUnreachable for a destination or a configuration file that cannot be understood.
"""

from __future__ import annotations

import getpass
import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko

from accelopt_core.ports import TargetUnreachable

DEFAULT_IDENTITIES = ("id_ed25519", "id_ecdsa", "id_rsa")
"""File names under ~/.ssh that OpenSSH tries without being told, of the types paramiko can use."""

_DEEPEST_INCLUDE = 16
"""OpenSSH's own limit (ssh_config(5), READCONF_MAX_DEPTH)."""


@dataclass(frozen=True)
class SshSettings:
    """How to connect and how patient to be; every host of a run shares one of these."""

    config_file: Path = field(default_factory=lambda: Path.home() / ".ssh" / "config")
    accept_new_host_key: bool = False
    """Store the key of a host never seen before without asking. A changed key is refused all the same."""
    connect_timeout_s: float = 15.0
    """For each of: TCP connect, SSH banner, authentication, opening a channel."""
    keepalive_s: int = 15
    silence_limit_s: float = 30.0
    """The host says something at least every few seconds; longer silence means the link is dead."""
    reconnect_for_s: float = 600.0
    """How long to keep trying to get a dropped link back before giving up."""

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "keepalive_s", "silence_limit_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"SshSettings.{name} is {getattr(self, name)}: need a positive number of seconds")


@dataclass(frozen=True)
class Endpoint:
    """One machine to log in to, with every setting resolved."""

    alias: str
    """What the person typed, without the user name."""
    host: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    identities_only: bool
    """Offer only `identity_files`, not every key the agent holds."""
    use_agent: bool
    known_hosts_files: tuple[Path, ...]
    """Searched in order; a new key is stored in the first."""
    host_key_alias: str | None
    hash_known_hosts: bool
    proxy_command: str | None
    jumps: tuple[str, ...]
    """Destinations to pass through, nearest first."""

    @property
    def where(self) -> str:
        """For error messages: `ubuntu@10.0.0.1:22`."""
        return f"{self.user}@{self.host}:{self.port}"

    @property
    def known_hosts_name(self) -> str:
        """The name under which known_hosts files this host (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""
        name = (self.host_key_alias or self.host).lower()
        return name if self.port == 22 or self.host_key_alias else f"[{name}]:{self.port}"


_DESTINATION = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?"
    r"(?:\[(?P<ip6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^@:\s\[\]/-][^@:\s\[\]/]*))"
    r"(?::(?P<port>\d{1,5}))?"
)


def resolve(destination: str, settings: SshSettings) -> Endpoint:
    """Look `[user@]host[:port]` up in the configuration; what is typed wins over what the file says."""
    plain = destination.strip()
    if plain.startswith("ssh://"):
        plain = plain.removeprefix("ssh://").removesuffix("/")
    parsed = _DESTINATION.fullmatch(plain)
    if parsed is None:
        raise TargetUnreachable(
            f"'{destination}' is not a host: write user@host, user@host:port or a Host of {settings.config_file}"
        )
    alias = parsed["ip6"] or parsed["host"]
    options = _lookup(alias, settings)
    ssh_dir = settings.config_file.parent
    known_hosts = tuple(
        Path(name).expanduser() for name in options.get("userknownhostsfile", "").split() if name != "none"
    ) or (ssh_dir / "known_hosts", ssh_dir / "known_hosts2")
    configured_keys = tuple(Path(name).expanduser() for name in options.get("identityfile", ()) if name != "none")
    jumps = tuple(jump.strip() for jump in options.get("proxyjump", "none").split(",") if jump.strip())
    return Endpoint(
        alias=alias,
        host=options["hostname"],
        port=_port(parsed["port"] or options.get("port", "22"), destination),
        user=parsed["user"] or options.get("user") or getpass.getuser(),
        identity_files=configured_keys
        or tuple(path for name in DEFAULT_IDENTITIES if (path := ssh_dir / name).exists()),
        identities_only=options.get("identitiesonly", "no").lower() == "yes",
        use_agent=options.get("identityagent", "").lower() != "none",
        known_hosts_files=known_hosts
        + tuple(
            Path(name).expanduser()
            for name in options.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts").split()
            if name != "none"
        ),
        host_key_alias=options.get("hostkeyalias"),
        hash_known_hosts=options.get("hashknownhosts", "no").lower() == "yes",
        proxy_command=options.get("proxycommand"),
        jumps=() if jumps == ("none",) else jumps,
    )


def _lookup(alias: str, settings: SshSettings) -> paramiko.SSHConfigDict:
    text = "\n".join(_lines(settings.config_file, 0)) if settings.config_file.exists() else ""
    try:
        return paramiko.SSHConfig.from_text(text).lookup(alias)
    except (paramiko.SSHException, ImportError, ValueError) as error:
        raise TargetUnreachable(
            f"{settings.config_file} cannot be read for host {alias}: {reason_of(error)}; "
            f"correct it, or give user@host:port of another Host"
        ) from error


def _lines(path: Path, depth: int) -> Iterator[str]:
    """The file with its Include lines replaced by what they name (paramiko ignores Include)."""
    if depth > _DEEPEST_INCLUDE:
        raise TargetUnreachable(f"{path}: Include nested deeper than {_DEEPEST_INCLUDE}; does a file include itself?")
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TargetUnreachable(f"{path} cannot be read: {error.strerror}; correct its permissions") from error
    block = "Host *"
    for line in text.splitlines():
        words = line.replace("=", " ", 1).split()
        keyword = words[0].lower() if words else ""
        if keyword in ("host", "match"):
            block = line
        if keyword != "include":
            yield line
            continue
        for pattern in words[1:]:
            for name in sorted(glob.glob(str(path.parent / Path(pattern.strip('"')).expanduser()))):
                yield from _lines(Path(name), depth + 1)
        yield block  # what follows belongs to the block the Include stood in, not to the included file's last


def _port(text: str, destination: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise TargetUnreachable(f"port {text} of '{destination}' is not between 1 and 65535")
    return int(text)


def reason_of(error: BaseException) -> str:
    """In one line."""
    return " ".join(str(error).split()) or type(error).__name__
