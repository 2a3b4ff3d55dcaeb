"""Colours for light and dark pages that people with any colour vision tell apart, and Vega's look made of them."""

from dataclasses import dataclass
from typing import Any

FONT = 'system-ui, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", "DejaVu Sans", "Liberation Sans", sans-serif'


@dataclass(frozen=True)
class Palette:
    """The colours of one look.

    Attributes:
        page: Colours of the page by the name of their CSS variable.
        series: Of lines and groups.
        ramp: Of lines and points that are ordered (layers): both ends can be seen on the page.
        sequential: Of cells from zero up: zero looks like the page.
        diverging: Of cells below and above zero: zero looks like the page.
    """

    page: dict[str, str]
    series: tuple[str, ...]
    ramp: tuple[str, ...]
    sequential: tuple[str, ...]
    diverging: tuple[str, ...]

    @property
    def variables(self) -> dict[str, str]:
        """The CSS variables of a page: its own colours and those of the series."""
        return self.page | {f"series-{number}": color for number, color in enumerate(self.series)}


LIGHT = Palette(
    page={
        "surface": "#ffffff",
        "raised": "#f4f6f8",
        "ink": "#1a1f24",
        "soft": "#55606b",
        "line": "#d5dae0",
        "accent": "#0b5cad",
    },
    series=("#0072b2", "#d55e00", "#00855f", "#b0568f", "#a87400", "#3d444b", "#4a52c4", "#6d7a00"),
    ramp=("#440154", "#31688e", "#1f9e77", "#8ab12b"),
    sequential=("#f7f9fc", "#b9d2ea", "#6aa3d2", "#2567ac", "#08306b"),
    diverging=("#1f5fa8", "#82b4da", "#f8f8f8", "#f0a080", "#b3202c"),
)
DARK = Palette(
    page={
        "surface": "#14181c",
        "raised": "#1e242a",
        "ink": "#e8ebee",
        "soft": "#a4afba",
        "line": "#3a434c",
        "accent": "#7db8f5",
    },
    series=("#56b4e9", "#f0894a", "#35c79a", "#e3a1c8", "#f0c04a", "#b9c0c7", "#8fa8ff", "#d0d65a"),
    ramp=("#8f84e0", "#3f9fb5", "#5fd080", "#fde725"),
    sequential=("#1a1f25", "#264b70", "#2f7fae", "#62bcd6", "#e4f6e0"),
    diverging=("#6db3ff", "#2d5f92", "#1a1f25", "#9c4b2c", "#ff9b66"),
)


def theme(colors: Palette) -> dict[str, Any]:
    """Return the Vega-Lite config of a look."""
    page = colors.page
    words = {
        "labelColor": page["ink"],
        "titleColor": page["ink"],
        "titleFontWeight": "normal",
        "titleFontSize": 12,
    }
    return {
        "background": page["surface"],
        "font": FONT,
        "view": {"stroke": None, "continuousHeight": 260},
        "axis": words
        | {
            "gridColor": page["line"],
            "domainColor": page["line"],
            "tickColor": page["line"],
            "labelFontSize": 11,
            "labelLimit": 130,
        },
        "axisQuantitative": {"labelOverlap": "greedy", "labelSeparation": 8, "labelFlush": False},
        "legend": words
        | {
            "orient": "bottom",
            "columns": 3,
            "labelLimit": 190,
            "labelFontSize": 11,
            "titleLimit": 340,
            "gradientLength": 180,
        },
        "title": {
            "color": page["ink"],
            "subtitleColor": page["ink"],
            "fontSize": 13,
            "fontWeight": 600,
            "anchor": "start",
            "limit": 560,
            "offset": 16,
        },
        "range": {
            "category": colors.series,
            "ordinal": colors.ramp,
            "ramp": colors.ramp,
            "heatmap": colors.sequential,
            "diverging": colors.diverging,
        },
        "mark": {"color": colors.series[0]},
        "text": {"color": page["ink"], "fontSize": 10},
        "rule": {"color": page["soft"]},
    }
