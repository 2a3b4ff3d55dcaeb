"""Matplotlib sheets for papers: one style, no pyplot, and files that are equal for equal figures."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps, font_manager, style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure

from identilens.errors import InputError
from identilens.results.files import write_atomically

FORMATS = ("png", "svg", "pdf")

SERIES = ("#0072b2", "#d55e00", "#00855f", "#b0568f", "#a87400", "#3d444b", "#4a52c4", "#6d7a00")
"""Colours of lines, told apart with any colour vision."""

MARKERS = ("o", "s", "D", "^", "P", "X", "*", "v")

_FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Noto Sans", "Noto Sans Symbols2")
_STYLE: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "svg.hashsalt": "identilens",
    "axes.unicode_minus": True,
}
# Dates would make every file differ from the last.
_UNDATED = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


@contextmanager
def paper_style() -> Iterator[None]:
    """Draw in the style of the paper figures; settings are as before afterwards."""
    # "default" drops what the user's matplotlibrc says, but never touches the backend.
    with style.context(["default", {**_STYLE, "font.family": [name for name, _ in _installed_fonts()]}]):
        yield


def layer_colors() -> Colormap:
    """Return colours for layers: viridis without its end that is too light for paper."""
    return ListedColormap(colormaps["viridis"](np.linspace(0, 0.88, 256)))


def new_sheet(width: float, height: float, layout: Literal["constrained", "compressed"] = "constrained") -> Figure:
    """Return an empty figure of so many inches that keeps labels from overlapping; "compressed" for square axes."""
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def save_sheets(sheets: Iterable[tuple[str, Figure]], folder: str | Path, formats: Sequence[str]) -> list[Path]:
    """Write figures, by name, once for each format and return the paths; each is drawn when its turn comes.

    Raises:
        InputError: For a format that is not supported; nothing is drawn then.
        OutputFolderError: If the folder cannot be written.
    """
    wanted, paths = check_formats(formats), []
    with paper_style():
        for name, figure in sheets:
            paths += save_sheet(figure, Path(folder), name, wanted)
    return paths


def save_sheet(figure: Figure, folder: Path, name: str, formats: Sequence[str]) -> list[Path]:
    """Write a figure once for each format and return the paths.

    Raises:
        OutputFolderError: If the folder cannot be written.
    """
    paths = []
    for kind in formats:
        path = folder / f"{name}.{kind}"
        write_atomically(path, partial(figure.savefig, format=kind, metadata=_UNDATED[kind]))
        paths.append(path)
    return paths


def check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """Return the formats, each once.

    Raises:
        InputError: For none, or one that is not supported.
    """
    wrong = [kind for kind in formats if kind not in FORMATS]
    if isinstance(formats, str) or wrong or not formats:
        raise InputError(
            f"formats must be a list with any of {', '.join(FORMATS)}; got {formats!r}. Pass e.g. formats=('png',)."
        )
    return tuple(dict.fromkeys(formats))


def drawable(text: str) -> str:
    """Return text with every character that no installed font can draw written as its escape."""
    fonts = [font_manager.get_font(path) for _, path in _installed_fonts()]
    return "".join(
        mark if any(font.get_char_index(ord(mark)) for font in fonts) else mark.encode("unicode_escape").decode()
        for mark in text
    )


@cache
def _installed_fonts() -> tuple[tuple[str, str], ...]:
    regular = (entry for entry in font_manager.fontManager.ttflist if entry.weight in (400, "normal"))
    installed = {entry.name: entry.fname for entry in regular if entry.style == "normal"}
    return tuple((name, installed[name]) for name in _FONTS if name in installed)
