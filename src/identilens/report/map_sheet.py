"""Attention maps side by side on paper, tokens on their axes."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy import ndarray

from identilens.report.labels import shortened
from identilens.report.paper import drawable, new_sheet

_LABEL_POINTS = 7.5


def maps_sheet(
    parts: Mapping[str, Float[ndarray, "query key"]], queries: Sequence[str], keys: Sequence[str], title: str
) -> Figure:
    """Return three maps on one colour scale.

    Args:
        parts: The maps by title.
        queries: Tokens of the rows.
        keys: Tokens of the columns.
        title: Of the sheet.
    """
    limit = max(float(np.abs(part).max()) for part in parts.values()) or 1.0
    norm = Normalize(-limit, limit)
    side = min(4.2, max(1.7, 0.13 * max(len(queries), len(keys))))
    wide, tall = (side * max(0.25, min(1, count / max(len(queries), len(keys)))) for count in (len(keys), len(queries)))
    square = len(queries) == len(keys)
    longest = max(len(shortened(drawable(key), 16)) for key in keys)
    figure = new_sheet(3 * wide + 2.0, tall + 1.0 + 0.06 * longest, "compressed" if square else "constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, (name, part) in zip(panels, parts.items(), strict=True):
        axes.imshow(part, norm=norm, cmap="RdBu_r", aspect="equal" if square else "auto", interpolation="nearest")
        token_ticks(axes, "x", keys, wide * 72, rotation=90)
        axes.set(title=name, xlabel="Key token")
    token_ticks(panels[0], "y", queries, tall * 72)
    panels[0].set_ylabel("Query token")
    figure.colorbar(ScalarMappable(norm, "RdBu_r"), ax=list(panels), fraction=0.03, pad=0.01, label="Attention")
    figure.suptitle(title, fontsize=9)
    return figure


def token_ticks(axes: Axes, axis: str, names: Sequence[str], points: float, rotation: int = 0) -> None:
    """Label every token, or every few where an axis of so many points has no room for all."""
    step = max(1, int(np.ceil(len(names) * _LABEL_POINTS / points)))
    places = list(range(0, len(names), step))
    labels = [shortened(drawable(names[place]), 16) for place in places]
    # Dollar signs are tokens here, not mathematics.
    if axis == "x":
        axes.set_xticks(places, labels, rotation=rotation, parse_math=False, fontsize=6.5)
    else:
        axes.set_yticks(places, labels, parse_math=False, fontsize=6.5)
