"""What judges kernels of each language, by its key. Loaded when it is asked for."""

from __future__ import annotations

from accelopt_core.languages.nki.language import NKI
from accelopt_core.languages.plugin import plugins
from accelopt_core.languages.registry import language_named
from accelopt_core.languages.supported import Supported


def supported(key: str) -> Supported:
    """Raises UnknownLanguage."""
    if language_named(key) is not NKI:
        return plugins()[key].supported()
    from infra.languages.nki import SUPPORTED

    return SUPPORTED
