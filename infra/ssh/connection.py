"""One authenticated SSH connection: TCP or proxy, host key, credentials, keep-alive.

Every failure is a TargetUnreachable of one line: what, where, what next. A link that was up and is gone is a
LinkDropped, so that a caller who can come back knows to try. No message contains key material or a passphrase.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko.pkey import PublicBlob

from accelopt_core.ports import TargetUnreachable
from infra.ssh import host_keys
from infra.ssh.config import Endpoint, SshSettings, reason_of, resolve
from infra.ssh.host_keys import Terminal

# Without a handler of its own, paramiko's reports of a broken link reach stderr as tracebacks.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_MOST_JUMPS = 8
_KEY_CLASSES = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)


class LinkDropped(TargetUnreachable):
    """The connection was up and is gone: wait for the network, or for the host to come back."""


class LinkNotUp(TargetUnreachable):
    """No connection could be made right now; the same attempt may work later."""


class NoSftp(Exception):
    """The link is up, and what answers to SFTP does not speak it: files have to go another way."""


class ControllingTerminal:
    """Asks the person who started the program, if there is one."""

    @property
    def interactive(self) -> bool:
        return sys.stdin.isatty() and sys.stderr.isatty()

    def ask(self, question: str) -> str:
        print(question, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline()

    def ask_secret(self, question: str) -> str:
        return getpass.getpass(question)


class Keyring:
    """Private keys, read once per run, so that a reconnect at night asks nobody for a passphrase."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._loaded: dict[Path, paramiko.PKey] = {}

    def keys_for(self, endpoint: Endpoint, remarks: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
        """Keys worth offering, those that need no passphrase first. What cannot be used goes to `remarks`."""
        encrypted: list[Path] = []
        for path in endpoint.identity_files:
            if (key := self._load(path, None, encrypted, remarks)) is not None:
                yield str(path), key
        yield from self._agent_keys(endpoint, remarks)
        for path in encrypted:
            if (key := self._unlock(path, remarks)) is not None:
                yield str(path), key

    def _agent_keys(self, endpoint: Endpoint, remarks: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
        if not endpoint.use_agent:
            return
        try:
            agent = paramiko.Agent()
        except (paramiko.SSHException, OSError) as error:
            remarks.append(f"the ssh agent does not answer ({reason_of(error)})")
            return
        try:
            wanted = {blob for path in endpoint.identity_files if (blob := _public_blob(path)) is not None}
            for number, key in enumerate(agent.get_keys(), 1):
                if not endpoint.identities_only or key.asbytes() in wanted:
                    yield f"agent key {number}", key
        finally:
            agent.close()

    def _unlock(self, path: Path, remarks: list[str]) -> paramiko.PKey | None:
        if not self._terminal.interactive:
            remarks.append(f"{path} is encrypted and there is no terminal to ask for its passphrase (use ssh-add)")
            return None
        for _ in range(3):
            passphrase = self._terminal.ask_secret(f"Passphrase for {path}: ")
            if not passphrase:
                break
            if (key := self._load(path, passphrase, [], [])) is not None:
                return key
        remarks.append(f"{path} was not unlocked")
        return None

    def _load(
        self, path: Path, passphrase: str | None, encrypted: list[Path], remarks: list[str]
    ) -> paramiko.PKey | None:
        if path in self._loaded:
            return self._loaded[path]
        for key_class in _KEY_CLASSES:
            try:
                key = key_class.from_private_key_file(str(path), passphrase)
            except paramiko.PasswordRequiredException:
                encrypted.append(path)
                return None
            except OSError as error:
                remarks.append(f"{path} cannot be read ({error.strerror})")
                return None
            except (paramiko.SSHException, ValueError):
                continue  # another type of key, or the wrong passphrase
            certificate = path.with_name(path.name + "-cert.pub")
            if certificate.exists():
                key.load_certificate(str(certificate))
            self._loaded[path] = key
            return key
        remarks.append(f"{path} is not a private key that can be used here")
        return None


class Connection:
    """An authenticated transport, and whatever it passes through. Close it."""

    def __init__(self, transport: paramiko.Transport, endpoint: Endpoint, settings: SshSettings, route: _Route) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._settings = settings
        self._route = route

    @property
    def alive(self) -> bool:
        return self._transport.is_active() and self._transport.is_authenticated()

    def execute(self, command: str) -> paramiko.Channel:
        """Start `command` under the login shell. Two round trips; reading times out after the silence limit."""
        with self._watched():
            channel = self._transport.open_session(timeout=self._settings.connect_timeout_s)
            channel.settimeout(self._settings.silence_limit_s)
            channel.exec_command(command)
        return channel

    @contextlib.contextmanager
    def sftp(self) -> Iterator[paramiko.SFTPClient]:
        """An SFTP session whose every operation times out after the silence limit.

        Raises NoSftp where the host has none, or its log-in shell prints into it.
        """
        with self._watched():
            channel = self._transport.open_session(timeout=self._settings.connect_timeout_s)
            channel.settimeout(self._settings.silence_limit_s)
            try:
                channel.invoke_subsystem("sftp")
                client = paramiko.SFTPClient(channel)
            except (paramiko.SFTPError, paramiko.SSHException, EOFError) as error:
                channel.close()
                if not self.alive:
                    raise EOFError(reason_of(error)) from error
                raise NoSftp(reason_of(error)) from error
        with client:
            yield client

    def open_tcp(self, host: str, port: int) -> paramiko.Channel:
        """A TCP connection from the host onwards, for ProxyJump."""
        try:
            with self._watched():
                return self._transport.open_channel(
                    "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=self._settings.connect_timeout_s
                )
        except LinkDropped as error:
            raise LinkNotUp(
                f"jump host {self._endpoint.where} does not reach {host}:{port}; check that address from "
                f"there, and AllowTcpForwarding"
            ) from error

    def close(self) -> None:
        self._transport.close()
        self._route.close()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """paramiko waits for some answers without limit; a timer that closes the transport ends those waits."""
        timer = threading.Timer(self._settings.silence_limit_s, self._transport.close)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self.dropped(error) from error
        finally:
            timer.cancel()

    def dropped(self, error: BaseException) -> LinkDropped:
        return LinkDropped(
            f"the connection to {self._endpoint.where} dropped ({reason_of(error)}); check the network and the host"
        )


class _Route:
    """The socket under a transport, and the proxy process or jump connection that carries it."""

    def __init__(
        self,
        sock: socket.socket | paramiko.Channel,
        jump: Connection | None = None,
        proxy: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.sock = sock
        self._jump = jump
        self._proxy = proxy

    def close(self) -> None:
        self.sock.close()
        if self._jump is not None:
            self._jump.close()
        if self._proxy is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._proxy.pid, signal.SIGTERM)
            try:
                self._proxy.wait(timeout=2)
            except subprocess.TimeoutExpired:
                os.killpg(self._proxy.pid, signal.SIGKILL)
                self._proxy.wait()


def connect(endpoint: Endpoint, settings: SshSettings, keyring: Keyring, terminal: Terminal) -> Connection:
    """Connect, check the host's key, log in. Raises TargetUnreachable."""
    return _connect(endpoint, endpoint.jumps, settings, keyring, terminal, depth=0)


def _connect(
    endpoint: Endpoint, jumps: tuple[str, ...], settings: SshSettings, keyring: Keyring, terminal: Terminal, depth: int
) -> Connection:
    if depth > _MOST_JUMPS:
        raise TargetUnreachable(
            f"more than {_MOST_JUMPS} jump hosts on the way to {endpoint.where}; does a ProxyJump name itself?"
        )
    if jumps:
        hop = resolve(jumps[-1], settings)
        jump = _connect(hop, jumps[:-1] or hop.jumps, settings, keyring, terminal, depth + 1)
        try:
            route = _Route(jump.open_tcp(endpoint.host, endpoint.port), jump=jump)
        except BaseException:
            jump.close()
            raise
    elif endpoint.proxy_command:
        route = _through_command(endpoint.proxy_command)
    else:
        route = _Route(_tcp(endpoint, settings))
    try:
        transport = paramiko.Transport(route.sock)
    except (paramiko.SSHException, OSError) as error:
        route.close()
        raise LinkNotUp(f"no connection to {endpoint.where}: {reason_of(error)}; check the host") from error
    connection = Connection(transport, endpoint, settings, route)
    try:
        _greet(transport, endpoint, settings)
        host_keys.check(
            endpoint, transport.get_remote_server_key(), accept_new=settings.accept_new_host_key, terminal=terminal
        )
        _log_in(transport, endpoint, keyring)
    except BaseException:
        connection.close()
        raise
    transport.set_keepalive(settings.keepalive_s)
    return connection


def _tcp(endpoint: Endpoint, settings: SshSettings) -> socket.socket:
    where = endpoint.where
    try:
        sock = socket.create_connection((endpoint.host, endpoint.port), timeout=settings.connect_timeout_s)
    except socket.gaierror as error:
        raise LinkNotUp(
            f"host name {endpoint.host} is unknown ({where}); check the spelling, ~/.ssh/config and the network"
        ) from error
    except ConnectionRefusedError as error:
        raise LinkNotUp(
            f"{where} refused the connection; check the port, and that the instance and its sshd run"
        ) from error
    except TimeoutError as error:
        raise LinkNotUp(
            f"{where} did not answer within {settings.connect_timeout_s:g} s; check the address, that the "
            f"instance runs, and its security group"
        ) from error
    except OSError as error:
        raise LinkNotUp(f"no way to {where}: {error.strerror or error}; check the network") from error
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; elsewhere the silence limit alone notices a dead link
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.silence_limit_s * 1000))
    return sock


def _through_command(command: str) -> _Route:
    # paramiko.ProxyCommand spins for ever when the command ends; a socket pair behaves like any other socket.
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            ["/bin/sh", "-c", "exec " + command],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return _Route(ours, proxy=process)


def _greet(transport: paramiko.Transport, endpoint: Endpoint, settings: SshSettings) -> None:
    transport.banner_timeout = settings.connect_timeout_s
    transport.auth_timeout = settings.connect_timeout_s
    transport.channel_timeout = settings.connect_timeout_s
    options = transport.get_security_options()
    known = {entry.key_type for entry in host_keys.known_keys(endpoint)}
    options.key_types = tuple(sorted(options.key_types, key=lambda name: _blob_type(name) not in known))
    timer = threading.Timer(settings.connect_timeout_s * 2, transport.close)
    timer.daemon = True
    timer.start()
    try:
        transport.start_client(timeout=settings.connect_timeout_s * 2)
        transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise LinkNotUp(
            f"{endpoint.where} accepts connections but does not complete an SSH greeting "
            f"({reason_of(error)}); is that the SSH port, and is the host overloaded?"
        ) from error
    finally:
        timer.cancel()


def _log_in(transport: paramiko.Transport, endpoint: Endpoint, keyring: Keyring) -> None:
    tried: list[str] = []
    remarks: list[str] = []
    for label, key in keyring.keys_for(endpoint, remarks):
        tried.append(label)
        try:
            also_wanted = transport.auth_publickey(endpoint.user, key)
        except paramiko.BadAuthenticationType as error:
            raise TargetUnreachable(
                f"{endpoint.where} does not accept keys, only {', '.join(error.allowed_types)}; "
                f"install a public key for {endpoint.user} there"
            ) from error
        except paramiko.AuthenticationException:
            if transport.is_active():
                continue
            raise TargetUnreachable(
                f"{endpoint.where} hung up after {len(tried)} rejected keys ({', '.join(tried)}); "
                f"name the right one: IdentityFile and IdentitiesOnly yes"
            ) from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise LinkNotUp(
                f"{endpoint.where} broke off the log-in ({reason_of(error)}) after: {', '.join(tried)}"
            ) from error
        if not also_wanted:
            return
        raise TargetUnreachable(
            f"{endpoint.where} wants {' or '.join(also_wanted)} beside a key, which nobody can "
            f"type at night; allow key-only log-in for {endpoint.user}"
        )
    offered = f"rejected {', '.join(tried)}" if tried else "had no key offered to it"
    raise TargetUnreachable(
        f"{endpoint.where} {offered}{''.join('; ' + remark for remark in remarks)}; check the "
        f"user name, IdentityFile in ~/.ssh/config, or ssh-add -l"
    )


def _blob_type(algorithm: str) -> str:
    """known_hosts names the key (`ssh-rsa`); the negotiation names the signature (`rsa-sha2-512`)."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def _public_blob(identity: Path) -> bytes | None:
    public = identity if identity.suffix == ".pub" else identity.with_name(identity.name + ".pub")
    try:
        return PublicBlob.from_file(str(public)).key_blob
    except (OSError, ValueError):
        return None
