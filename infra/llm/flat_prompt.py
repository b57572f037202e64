"""A request as one text, for models that are not behind a chat interface: programs and people."""

from __future__ import annotations

from accelopt_core.ports import ModelRequest

_HEADINGS = {"user": "Request", "assistant": "Your earlier answer"}


def flat_prompt(request: ModelRequest, *, with_system: bool = True) -> str:
    """System text, then every message under a heading; complete in itself."""
    parts = [f"# Instructions\n\n{request.system.strip()}"] if with_system and request.system.strip() else []
    if len(request.messages) == 1 and not parts:
        return request.messages[0].content.strip() + "\n"
    parts += [f"# {_HEADINGS[message.role]}\n\n{message.content.strip()}" for message in request.messages]
    return "\n\n---\n\n".join(parts) + "\n"
