"""matplotlib, as pages use it: SVG that takes its colours from the page's style sheet, once wide and once narrow.

The only file that imports matplotlib, which the extra `report` brings.
"""

from __future__ import annotations

import importlib.util
import io
import re
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

HOW_TO_INSTALL = "`pip install 'nki-optimizer[report]'`, or in a clone `.venv/bin/pip install -e '.[report]'`"


class NoPlots(Exception):
    """matplotlib is missing: the line says what to install."""


INK, MUTED, GRID, BEFORE, AFTER, GOOD, BAD, WARN = (f"#0a0b0{number}" for number in range(8))
"""Stand-ins for what style.css names --plot-0 to --plot-7, so that one drawing serves light and dark."""

_STAND_IN = re.compile(r"#0a0b0(\d)")
_NAMES = re.compile(r' id="[A-Za-z0-9.]+_\d+"')
"""Of groups, the same in every drawing: nothing refers to them."""
_DIGITS = re.compile(r"(?<=\d\.\d\d)\d+")
"""Of coordinates, beyond a hundredth of a point."""

WIDE_IN, NARROW_IN = 9.2, 3.5
"""Inches: at 1280 pixels, and at 400."""
FONT_PT = 9.0


@dataclass(frozen=True)
class Picture:
    """The same drawn twice: a narrow page shows the second."""

    wide: str
    """SVG, to stand in HTML as it is."""
    narrow: str
    words: str
    """What it shows, for who does not see it."""


def available() -> None:
    """Raises NoPlots."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NoPlots(f"a report is drawn with matplotlib, which is missing: {HOW_TO_INSTALL}")


def picture(name: str, words: str, height_in: float, draw: Callable[[Any, bool], None], taller: float = 1.0) -> Picture:
    """`draw` is handed a matplotlib Figure, and whether it is the narrow one. `name`: no other on the page has it.
    `taller`: of the narrow one's height."""
    wide = _svg(f"{name}-wide", WIDE_IN, height_in, lambda figure: draw(figure, False))
    narrow = _svg(f"{name}-narrow", NARROW_IN, height_in * taller, lambda figure: draw(figure, True))
    return Picture(wide, narrow, words)


def _svg(salt: str, width_in: float, height_in: float, draw: Callable[[Any], None]) -> str:
    from matplotlib.figure import Figure  # no pyplot: no windows, no state between drawings

    with _style(salt), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the browser has its own fonts
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        draw(figure)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    shorter = re.sub(r'(?<= d=")[^"]*', lambda path: _DIGITS.sub("", path[0]), text)
    return _NAMES.sub("", _STAND_IN.sub(r"var(--plot-\1)", shorter))


def _style(salt: str) -> AbstractContextManager[Any]:
    """Text stays text, and dollar signs are no formulas: names come from kernels and models."""
    import matplotlib

    return matplotlib.rc_context(
        {
            "svg.fonttype": "none", "svg.hashsalt": salt, "text.parse_math": False, "font.family": "DejaVu Sans",
            "font.size": FONT_PT, "axes.titlesize": FONT_PT, "axes.labelsize": FONT_PT, "xtick.labelsize": FONT_PT,
            "ytick.labelsize": FONT_PT, "legend.fontsize": FONT_PT, "legend.frameon": False, "text.color": INK,
            "axes.edgecolor": MUTED, "axes.labelcolor": INK, "xtick.color": MUTED, "ytick.color": MUTED,
            "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False,
            "grid.color": GRID, "grid.linewidth": 0.6, "axes.axisbelow": True, "axes.titlelocation": "left",
            "axes.formatter.useoffset": False, "path.simplify": True,
        }
    )  # fmt: skip
