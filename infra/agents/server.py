"""`nki-optimizer mcp`: the server, where its package is installed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import config
from infra.agents.terms import terms_of
from infra.settings_reader import SettingsError

PACKAGE = "mcp"


def serve(invocation: config.Invocation) -> None:
    """Until standard input ends. Raises SettingsError, where the package is missing too."""
    terms = terms_of(invocation, os.environ, Path.cwd())
    if find_spec(PACKAGE) is None:
        raise SettingsError(
            "mcp: the package mcp is missing: pip install 'nki-optimizer[mcp]' (in a clone: .venv/bin/pip install -e "
            "'.[mcp]')"
        )
    from infra.agents import protocol

    protocol.serve(terms)
