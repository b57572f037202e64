"""Getting through to a host, or a one-line reason why not."""

from __future__ import annotations

import base64
import getpass
import hashlib
import hmac
import os
import shlex
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.ports import TargetUnreachable
from infra.ssh.config import SshSettings, resolve
from infra.ssh.host_keys import HostKeyRejected
from infra.ssh.runner import SshRunner
from tests.processes import PATIENCE_S, eventually
from tests.ssh.server import Sshd, free_port, make_sshd, processes_mentioning


class Person:
    """Somebody at a terminal who gives prepared answers."""

    interactive = True

    def __init__(self, answer: str = "", passphrase: str = "") -> None:
        self._answer = answer
        self._passphrase = passphrase
        self.asked: list[str] = []

    def ask(self, question: str) -> str:
        self.asked.append(question)
        return self._answer

    def ask_secret(self, question: str) -> str:
        self.asked.append(question)
        return self._passphrase


class Nobody:
    interactive = False

    def ask(self, question: str) -> str:
        raise AssertionError(f"asked a terminal that is not there: {question}")

    ask_secret = ask


def echo(destination: str, settings: SshSettings, work: Path, terminal: Person | Nobody | None = None) -> str:
    with SshRunner(destination, settings, root=str(work), terminal=terminal or Nobody()) as runner:
        return runner.run(["echo", "through"], 20).stdout.decode()


def refusal(destination: str, settings: SshSettings, work: Path, terminal: Person | Nobody | None = None) -> str:
    with pytest.raises(TargetUnreachable) as caught:
        echo(destination, settings, work, terminal)
    message = str(caught.value)
    assert "\n" not in message and "Traceback" not in message
    return message


def test_given_an_unknown_host_and_no_terminal_then_the_error_shows_fingerprint_and_flag(sshd, work) -> None:
    (sshd.home / "known_hosts").unlink()
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(sshd.home / "host_key.pub")], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    message = refusal(sshd.destination, sshd.settings, work)
    assert shown.startswith("SHA256:") and shown in message
    assert "--accept-new-host-key" in message
    assert not (sshd.home / "known_hosts").exists()


def test_given_accept_new_then_the_key_is_stored_and_ssh_keygen_finds_it(sshd: Sshd, work: Path) -> None:
    known = sshd.home / "known_hosts"
    known.write_text("# no newline at the end")
    assert echo(sshd.destination, replace(sshd.settings, accept_new_host_key=True), work) == "through\n"
    found = subprocess.run(["ssh-keygen", "-F", f"[127.0.0.1]:{sshd.port}", "-f", str(known)], capture_output=True)
    assert found.returncode == 0
    assert echo(sshd.destination, sshd.settings, work) == "through\n"


@pytest.mark.parametrize("accept_new", [False, True])
def test_given_a_changed_key_then_it_is_refused_whatever_the_flags(sshd: Sshd, work: Path, accept_new: bool) -> None:
    kind, blob = (sshd.home / "other_key.pub").read_text().split()[:2]
    known = sshd.home / "known_hosts"
    known.write_text(f"[127.0.0.1]:{sshd.port} {kind} {blob}\n")
    before = known.read_bytes()
    message = refusal(sshd.destination, replace(sshd.settings, accept_new_host_key=accept_new), work, Person("yes"))
    assert "CHANGED" in message and "ssh-keygen -R" in message and f"{known}:1" in message
    assert known.read_bytes() == before


def test_given_a_host_known_by_another_type_of_key_then_it_counts_as_changed(sshd: Sshd, work: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(sshd.home / "ecdsa_key")], check=True)
    kind, blob = (sshd.home / "ecdsa_key.pub").read_text().split()[:2]
    (sshd.home / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {kind} {blob}\n")
    assert "CHANGED" in refusal(sshd.destination, replace(sshd.settings, accept_new_host_key=True), work)


def test_given_a_server_with_two_keys_when_one_is_known_then_that_one_is_asked_for(tmp_path: Path, work: Path) -> None:
    home = tmp_path / "two"
    server = make_sshd(home, (f"HostKey {home / 'ecdsa_key'}",))
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(home / "ecdsa_key")], check=True)
    kind, blob = (home / "ecdsa_key.pub").read_text().split()[:2]
    (home / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {kind} {blob}\n")
    server.start()
    try:
        assert echo(server.destination, server.settings, work) == "through\n"
    finally:
        server.stop()


def test_given_a_revoked_key_then_it_is_refused_although_another_line_trusts_it(sshd: Sshd, work: Path) -> None:
    (sshd.home / "known_hosts").write_text(sshd.host_key_line() + "@revoked " + sshd.host_key_line("*"))
    assert "revoked" in refusal(sshd.destination, replace(sshd.settings, accept_new_host_key=True), work)


def _hashed(name: str) -> str:
    salt = bytes(range(20))
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    ("name", "trusted"),
    [
        (lambda port: _hashed(f"[127.0.0.1]:{port}"), True),
        (lambda port: "[127.0.0.*]:*", True),
        (lambda port: f"other.example,[127.0.0.1]:{port}", True),
        (lambda port: _hashed("127.0.0.1"), False),  # for port 22
        (lambda port: f"*,![127.0.0.1]:{port}", False),
        (lambda port: "127.0.0.1", False),  # port 22 only
        (lambda port: f"@cert-authority [127.0.0.1]:{port}", False),  # an authority, not a key
        (lambda port: "|1|not-base64|either", False),
    ],
)
def test_known_hosts_forms_that_trust_and_that_do_not(sshd: Sshd, work: Path, name, trusted) -> None:
    (sshd.home / "known_hosts").write_text(sshd.host_key_line(name(sshd.port)))
    if trusted:
        assert echo(sshd.destination, sshd.settings, work) == "through\n"
    else:
        assert "not in known_hosts" in refusal(sshd.destination, sshd.settings, work)


@pytest.mark.parametrize(
    ("answer", "trusted"), [("yes", True), ("YES \n", True), ("no", False), ("", False), ("y", False)]
)
def test_given_a_terminal_then_the_person_decides(sshd: Sshd, work: Path, answer: str, trusted: bool) -> None:
    (sshd.home / "known_hosts").unlink()
    person = Person(answer)
    if trusted:
        assert echo(sshd.destination, sshd.settings, work, person) == "through\n"
    else:
        assert "not accepted" in refusal(sshd.destination, sshd.settings, work, person)
    assert len(person.asked) == 1 and "SHA256:" in person.asked[0]
    assert (sshd.home / "known_hosts").exists() is trusted


def test_given_hash_known_hosts_then_the_stored_name_is_not_readable(sshd: Sshd, work: Path) -> None:
    (sshd.home / "known_hosts").unlink()
    (sshd.home / "config").write_text("HashKnownHosts yes\n")
    echo(sshd.destination, replace(sshd.settings, accept_new_host_key=True), work)
    text = (sshd.home / "known_hosts").read_text()
    assert "127.0.0.1" not in text and text.startswith("|1|")
    assert echo(sshd.destination, sshd.settings, work) == "through\n"


def test_given_a_key_the_host_does_not_know_then_the_error_names_it_and_no_secret(sshd: Sshd, work: Path) -> None:
    (sshd.home / "config").write_text(f"IdentityFile {sshd.home / 'other_key'}\nIdentityAgent none\n")
    message = refusal(sshd.destination, sshd.settings, work)
    assert str(sshd.home / "other_key") in message and "rejected" in message
    secret_text = (sshd.home / "other_key").read_text().splitlines()[2]
    assert secret_text not in message


def test_given_a_key_by_hand_then_it_is_offered_first(sshd: Sshd, work: Path) -> None:
    sshd.user_key.rename(sshd.home / "by_hand")
    for key in ("by_hand", "absent"):
        (sshd.home / "config").write_text(f"IdentityFile {sshd.home / key}\nIdentityAgent none\n")
        if key == "by_hand":
            assert echo(sshd.destination, sshd.settings, work) == "through\n"
    assert f"{sshd.home / 'absent'} cannot be read" in refusal(sshd.destination, sshd.settings, work)


@pytest.mark.parametrize(("content", "said"), [(None, "cannot be read"), ("not a key at all\n", "not a private key")])
def test_given_an_unusable_identity_file_then_the_error_says_what_is_wrong(sshd, work, content, said) -> None:
    path = sshd.home / "odd_key"
    if content is not None:
        path.write_text(content)
    (sshd.home / "config").write_text(f"IdentityFile {path}\nIdentityAgent none\n")
    message = refusal(sshd.destination, sshd.settings, work)
    assert said in message and str(path) in message


@pytest.fixture
def encrypted(sshd: Sshd) -> Sshd:
    """The user's key now needs a passphrase."""
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "correct horse", "-f", str(sshd.user_key)], check=True)
    (sshd.home / "config").write_text("IdentityAgent none\n")
    return sshd


def test_given_an_encrypted_key_and_a_person_then_the_passphrase_is_asked_once_even_across_a_drop(encrypted, work):
    person = Person(passphrase="correct horse")
    with SshRunner(encrypted.destination, encrypted.settings, root=str(work), terminal=person) as runner:
        assert runner.run(["echo", "a"], 20).stdout == b"a\n"
        encrypted.cut()
        assert runner.run(["echo", "b"], 20).stdout == b"b\n"
    assert len(person.asked) == 1


def test_given_a_wrong_passphrase_then_three_attempts_and_no_trace_of_it(encrypted: Sshd, work: Path) -> None:
    person = Person(passphrase="hunter2")
    message = refusal(encrypted.destination, encrypted.settings, work, person)
    assert len(person.asked) == 3 and "not unlocked" in message and "hunter2" not in message
    assert "encrypted" in refusal(encrypted.destination, encrypted.settings, work), "with nobody to ask"


@pytest.mark.parametrize(
    ("lines", "host", "said"),
    [
        ("Host inner\n  HostName 127.0.0.1\n  Port {free}\n  ProxyJump {itself}\n", "inner", "jump host"),
        ("Host loop\n  HostName 127.0.0.1\n  Port {port}\n  ProxyJump loop\n", "loop", "ProxyJump name itself"),
        ("Host far\n  HostName 127.0.0.1\n  ProxyCommand false\n", "far", "greeting"),
    ],
)
def test_given_a_way_round_that_leads_nowhere_then_one_line_says_so(sshd: Sshd, work: Path, lines, host, said) -> None:
    text = lines.format(free=free_port(), port=sshd.port, itself=sshd.destination)
    (sshd.home / "config").write_text(text)
    assert said in refusal(host, sshd.settings, work)


def test_given_an_agent_that_holds_the_key_then_no_file_is_needed(encrypted, work, monkeypatch, tmp_path) -> None:
    sock = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
    try:
        assert eventually(sock.exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        subprocess.run(
            ["ssh-keygen", "-q", "-p", "-P", "correct horse", "-N", "", "-f", str(encrypted.user_key)], check=True
        )
        subprocess.run(["ssh-add", "-q", str(encrypted.user_key)], check=True)
        (encrypted.home / "config").write_text("")
        encrypted.user_key.unlink()
        assert echo(encrypted.destination, encrypted.settings, work) == "through\n"
        (encrypted.home / "config").write_text(f"IdentitiesOnly yes\nIdentityFile {encrypted.home / 'other_key'}\n")
        assert "rejected" in refusal(encrypted.destination, encrypted.settings, work)
    finally:
        agent.terminate()
        agent.wait()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(5)
        yield sock


def test_given_a_host_that_accepts_and_says_nothing_then_it_is_given_up_in_time(listener, tmp_path, work) -> None:
    settings = SshSettings(config_file=tmp_path / "config", connect_timeout_s=0.5)
    message = refusal(f"127.0.0.1:{listener.getsockname()[1]}", settings, work)
    assert "does not complete an SSH greeting" in message


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-odd\r\n\xff\xff\xff\xff", b"\0" * 5000]
)
def test_given_something_that_is_no_ssh_server_then_one_line_says_so(listener, tmp_path, work, said) -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(said)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    settings = SshSettings(config_file=tmp_path / "config", connect_timeout_s=2.0)
    message = refusal(f"127.0.0.1:{listener.getsockname()[1]}", settings, work)
    thread.join(timeout=PATIENCE_S)
    assert "SSH" in message


def test_given_a_name_that_does_not_resolve_then_the_error_says_so(tmp_path: Path, work: Path) -> None:
    settings = SshSettings(config_file=tmp_path / "config")
    assert "unknown" in refusal("ubuntu@no-such-host.invalid", settings, work)


def test_given_an_alias_then_host_port_user_and_key_come_from_the_file(sshd: Sshd, work: Path) -> None:
    sshd.user_key.rename(sshd.home / "special")
    (sshd.home / "parts").mkdir()
    (sshd.home / "parts" / "trn.conf").write_text(
        f"Host trn\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {sshd.home / 'special'}\n  UserKnownHostsFile {sshd.home / 'kh1'} {sshd.home / 'kh2'}\n"
    )
    (sshd.home / "config").write_text("Include parts/*.conf\nIdentityAgent none\n")
    (sshd.home / "known_hosts").rename(sshd.home / "kh2")
    assert echo("trn", sshd.settings, work) == "through\n"


def test_given_a_proxy_jump_then_both_hosts_are_checked_and_passed(sshd: Sshd, work: Path) -> None:
    (sshd.home / "config").write_text(
        f"Host *\n  User {getpass.getuser()}\n  Port {sshd.port}\nHost gate\n  HostName 127.0.0.1\n"
        f"Host inner\n  HostName localhost\n  ProxyJump gate\n"
    )
    assert f"localhost:{sshd.port}" in refusal("inner", sshd.settings, work)  # the inner host's key is checked too
    (sshd.home / "known_hosts").write_text(sshd.host_key_line() + sshd.host_key_line(f"[localhost]:{sshd.port}"))
    assert echo("inner", sshd.settings, work) == "through\n"
    (sshd.home / "known_hosts").write_text(sshd.host_key_line(f"[localhost]:{sshd.port}"))
    assert f"127.0.0.1:{sshd.port}" in refusal("inner", sshd.settings, work)


def test_given_a_proxy_command_then_it_carries_the_connection_and_is_gone_afterwards(sshd, work, tmp_path) -> None:
    relay = tmp_path / "relay-by-hand.py"
    relay.write_text(
        "import os, socket, sys, threading\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def back():\n    while True:\n        d = s.recv(65536)\n"
        "        if not d: os._exit(0)\n        os.write(1, d)\n"
        "threading.Thread(target=back, daemon=True).start()\n"
        "while True:\n    d = os.read(0, 65536)\n    if not d: os._exit(0)\n    s.sendall(d)\n"
    )
    (sshd.home / "config").write_text(
        f"Host far\n  HostName 127.0.0.1\n  Port {sshd.port}\n  ProxyCommand python3 {shlex.quote(str(relay))} %h %p\n"
    )
    assert echo("far", sshd.settings, work) == "through\n"
    assert eventually(lambda: not processes_mentioning(str(relay)))


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("ubuntu@10.0.0.1", ("ubuntu", "10.0.0.1", 22)),
        ("ubuntu@10.0.0.1:2200", ("ubuntu", "10.0.0.1", 2200)),
        ("ssh://ubuntu@trn.example:2200", ("ubuntu", "trn.example", 2200)),
        ("ssh://ubuntu@trn.example:2200/", ("ubuntu", "trn.example", 2200)),
        ("ubuntu@[fe80::1]:2200", ("ubuntu", "fe80::1", 2200)),
    ],
)
def test_destinations_as_people_type_them(tmp_path: Path, typed: str, expected: tuple[str, str, int]) -> None:
    endpoint = resolve(typed, SshSettings(config_file=tmp_path / "config"))
    assert (endpoint.user, endpoint.host, endpoint.port) == expected


@pytest.mark.parametrize(
    "typed",
    ["", "@", "user@", "-oProxyCommand=reboot", "a b", "host:notaport", "host:0", "host:99999", "fe80::1", "host/path"],
)
def test_destinations_that_make_no_sense(tmp_path: Path, typed: str) -> None:
    with pytest.raises(TargetUnreachable):
        resolve(typed, SshSettings(config_file=tmp_path / "config"))


@pytest.mark.parametrize("text", ["Host x\n  Port many\n", "Include config\n", "rubbish\n"])
def test_configuration_files_that_make_no_sense(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(TargetUnreachable) as caught:
        resolve("x", SshSettings(config_file=tmp_path / "config"))
    assert "\n" not in str(caught.value)
    (tmp_path / "more").write_text("Host other\n  User someone\n")
    (tmp_path / "config").write_text("Include more\nUser everyone\n")
    assert resolve("trn", SshSettings(config_file=tmp_path / "config")).user == "everyone", "its block goes on"


def test_a_known_hosts_file_that_cannot_be_written_is_said(sshd: Sshd, work: Path) -> None:
    (sshd.home / "known_hosts").unlink()
    (sshd.home / "config").write_text(f"UserKnownHostsFile {os.devnull}/known\n")
    with pytest.raises(HostKeyRejected, match="cannot be"):
        echo(sshd.destination, replace(sshd.settings, accept_new_host_key=True), work)
