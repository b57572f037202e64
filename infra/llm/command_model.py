"""Any program as the model: prompt on standard input, reply on standard output."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence

from accelopt_core.ports import (
    LanguageModel,
    ModelRejectedCredentials,
    ModelReply,
    ModelRequest,
    ModelUnreachable,
    Usage,
)
from infra.llm.provider import Provider, ProviderSettings, flat_prompt
from infra.llm.retry import DEFAULT_PATIENCE, POLL_S, Patience, Transient, Trouble, one_line, redacted, with_retries
from infra.scratch_folder import ScratchFolder

LONGEST_REPLY_BYTES = 8 << 20
_BUSY = re.compile(r"rate.?limit|overloaded|usage limit|too many requests|\b429\b|\b529\b", re.I)
_LOGIN = re.compile(r"invalid api key|not logged in|please run /login|authentication|unauthorized|\b401\b", re.I)


class CommandModel:
    """Runs a command once per reply, in its own process group and an empty directory.

    Exit status 0 and some output is a reply; anything else is an error whose line ends with the last of
    what the program wrote to standard error. Token counts are not known.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str | None = None,
        timeout_s: float = 600.0,
        patience: Patience = DEFAULT_PATIENCE,
    ) -> None:
        """Raises ModelUnreachable when the program is not there."""
        if not command:
            raise ModelUnreachable("command: it is empty: give a program that reads a prompt and writes a reply")
        self._command = list(command)
        self._label = name or f"command:{os.path.basename(command[0])}"
        self._timeout_s = timeout_s
        self._patience = patience
        if shutil.which(command[0]) is None:
            raise ModelUnreachable(f"{self._label}: no program {command[0]!r}: install it or give its full path")

    @property
    def name(self) -> str:
        return self._label

    def complete(self, request: ModelRequest) -> ModelReply:
        return with_retries(lambda: self._attempt(request), where=self._label, patience=self._patience)

    def _arguments(self, request: ModelRequest) -> list[str]:
        return self._command

    def _prompt(self, request: ModelRequest) -> str:
        return flat_prompt(request)

    def _reply(self, output: str) -> ModelReply:
        if not output.strip():
            raise Transient(Trouble.EMPTY, "the program wrote no reply")
        return ModelReply(output, self._label.split(":", 1)[-1], Usage())

    def _attempt(self, request: ModelRequest) -> ModelReply:
        status, output, complaint = self._run(self._arguments(request), self._prompt(request))
        if status != 0:
            raise self._failure(status, output, complaint)
        return self._reply(output)

    def _failure(self, status: int, output: str, complaint: str) -> Exception:
        said = one_line(redacted((complaint.strip() or output.strip())[-600:], ())) or "it said nothing"
        line = f"exit status {status}: {said}"
        if _LOGIN.search(said):
            return ModelRejectedCredentials(f"{self._label}: {line}: log the program in, or give it a key")
        if _BUSY.search(said):
            return Transient(Trouble.BUSY, line)
        return Transient(Trouble.UNREACHABLE, line)

    def _run(self, command: list[str], prompt: str) -> tuple[int, str, str]:
        """Exit status, output and complaints. Its whole process group ends with it, however it ends."""
        with (
            ScratchFolder("nki-optimizer-model-") as folder,
            tempfile.TemporaryFile() as prompt_file,
            tempfile.TemporaryFile() as output_file,
            tempfile.TemporaryFile() as complaint_file,
        ):
            # Files instead of pipes: nothing can block, however much is written and by whatever child.
            prompt_file.write(prompt.encode("utf-8", "replace"))
            prompt_file.seek(0)
            try:
                process = subprocess.Popen(
                    command,
                    stdin=prompt_file,
                    stdout=output_file,
                    stderr=complaint_file,
                    cwd=folder,
                    start_new_session=True,
                )
            except OSError as error:
                raise ModelUnreachable(f"{self._label}: cannot start ({error.strerror}): check the command") from error
            try:
                status = self._ended(process)
            finally:
                _end_group(process)
            texts = []
            for file in (output_file, complaint_file):
                file.seek(0)
                texts.append(file.read(LONGEST_REPLY_BYTES).decode("utf-8", "replace"))
        return status, texts[0], texts[1]

    def _ended(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit status. Raises Transient when it takes too long, and Stop."""
        deadline = time.monotonic() + self._timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                return process.wait(min(left, POLL_S))
            except subprocess.TimeoutExpired:
                self._patience.stopping.check()
        raise Transient(Trouble.TIMEOUT, f"no reply within {self._timeout_s:g} s")


def _split(text: str) -> list[str]:
    """A command line as the user's shell would split it. Raises ModelUnreachable for unbalanced quotes."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ModelUnreachable(f"command: {text!r}: {error}: quote it as in a shell") from None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The program and whatever it started; a program that has ended may leave children behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def _build(settings: ProviderSettings) -> LanguageModel:
    if not settings.model_command:
        raise ModelUnreachable("command: no program: give one that reads a prompt and writes a reply")
    return CommandModel(_split(settings.model_command), timeout_s=settings.timeout_s, patience=settings.patience)


PROVIDER = Provider("command", _build, needs=("model_command",), named_by="model_command")
