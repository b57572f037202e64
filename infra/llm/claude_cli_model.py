"""The `claude` program as the model: its own login, its own default model."""

from __future__ import annotations

import json
from typing import Any

from accelopt_core.ports import LanguageModel, ModelError, ModelRefused, ModelReply, ModelRequest, Usage
from infra.llm.command_model import CommandModel
from infra.llm.provider import Provider, ProviderSettings, flat_prompt
from infra.llm.retry import DEFAULT_PATIENCE, Patience, Transient, Trouble


class ClaudeCliModel(CommandModel):
    """The `claude` command in print mode: no tools, no project settings, its JSON result with token counts."""

    def __init__(
        self,
        model: str | None = None,
        *,
        program: str = "claude",
        timeout_s: float = 600.0,
        patience: Patience = DEFAULT_PATIENCE,
    ) -> None:
        super().__init__([program], name=f"claude-cli:{model or 'default'}", timeout_s=timeout_s, patience=patience)
        self._model = model

    def _arguments(self, request: ModelRequest) -> list[str]:
        chosen = ["--model", self._model] if self._model else []
        system = ["--system-prompt", request.system] if request.system else []
        return [*self._command, "-p", "--output-format", "json", "--tools", "", *chosen, *system]

    def _prompt(self, request: ModelRequest) -> str:
        return flat_prompt(request, with_system=False)

    def _failure(self, status: int, output: str, complaint: str) -> Exception:
        # In print mode the reason stands in the JSON result, not on standard error.
        result = _result(output)
        return (
            super()._failure(status, "", str(result.get("result") or complaint))
            if result
            else super()._failure(status, output, complaint)
        )

    def _reply(self, output: str) -> ModelReply:
        result = _result(output)
        if result is None:
            raise Transient(Trouble.UNREACHABLE, "its output is not the JSON result of print mode")
        usage = _claude_usage(result.get("usage"))
        text = result.get("result")
        if result.get("is_error"):
            fault = self._failure(0, output, "")
            if isinstance(fault, ModelError):
                fault.usage = usage
            raise fault
        if result.get("stop_reason") == "refusal":
            refused = ModelRefused(f"{self.name}: the model declined to answer: choose another --model")
            refused.usage = usage
            raise refused
        if not isinstance(text, str) or not text.strip():
            raise Transient(Trouble.EMPTY, f"an empty reply ({result.get('subtype')})", usage=usage)
        used = result.get("modelUsage")
        names = list(used) if isinstance(used, dict) else []
        return ModelReply(
            text,
            names[0] if len(names) == 1 else self._model or "default",
            usage,
            truncated=result.get("stop_reason") == "max_tokens",
        )


def _result(output: str) -> dict[str, Any] | None:
    try:
        document = json.loads(output)
    except (json.JSONDecodeError, RecursionError):
        return None
    return document if isinstance(document, dict) and document.get("type") == "result" else None


def _claude_usage(usage: object) -> Usage:
    def count(name: str) -> int:
        value = usage.get(name) if isinstance(usage, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0

    return Usage(
        count("input_tokens"),
        count("output_tokens"),
        count("cache_read_input_tokens"),
        count("cache_creation_input_tokens"),
    )


def _build(settings: ProviderSettings) -> LanguageModel:
    return ClaudeCliModel(settings.model, timeout_s=settings.timeout_s, patience=settings.patience)


PROVIDER = Provider("claude-cli", _build)
