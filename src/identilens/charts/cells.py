"""Charts of cells: a table of numbers as colours, and attention maps for print."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Unpack

import altair as alt
import polars as pl
import torch
from torch import Tensor

from identilens.charts.encoding import Look, Number, base_chart, field, inline, layered
from identilens.charts.figures import ConcatChart
from identilens.charts.labels import shortened, visible_text
from identilens.charts.palette import LIGHT

_MOST_NUMBERS, _CELL = 24, 46
"""Columns of cells with numbers, and pixels that a number needs."""
_LABEL = 14
_TICK = 9
"""Pixels that the label of a token needs along its axis."""


def heat(
    frame: pl.DataFrame,
    x: str,
    y: str,
    value: str,
    *,
    domain: tuple[Number, Number] | None = None,
    **look: Unpack[Look],
) -> alt.LayerChart:
    """Return a cell for every row, coloured by its value, such as one for each layer and head; smallest ``y`` on top.

    Colours end at ``domain``, or at zero and where the values do.
    """
    columns = frame[x].n_unique()
    look = Look(height=max(90, 22 * frame[y].n_unique())) | look
    look["also"] = (value, *look.get("also", ()))
    base = base_chart(frame, x, y, grouped="xy", **look)
    color = alt.Color(
        field(value),
        type="quantitative",
        title=look.get("labels", {}).get(value, value),
        scale=alt.Scale(domain=domain or alt.Undefined, zero=True),
    )
    layers = [base.mark_rect().encode(color=color)]
    if columns <= _MOST_NUMBERS:
        # Dark or light ink by how light the cell is drawn, hidden where the cell has no room for it.
        light = f"luminance(scale('color', datum['{field(value)}'])) > 0.35"
        ink = alt.condition(light, alt.value("#14181c"), alt.value("#ffffff"))
        text = base.transform_filter(f"isValid(datum['{field(value)}'])")
        text = text.mark_text(fontSize=9, opacity=alt.expr(f"width < {_CELL * columns} ? 0 : 1"))
        number = alt.Text(field(value), type="quantitative", format=".3~g")
        layers.append(text.encode(text=number, color=ink))
    return layered(layers)


def token_map(
    maps: Mapping[str, Tensor],
    queries: Sequence[str],
    keys: Sequence[str],
    title: Any,
    *,
    columns: int = 3,
    side: int = 200,
    domain: tuple[Number, Number] | None = None,
    marked: Tensor | None = None,
) -> alt.ConcatChart:
    """Return maps by query and key token for print, side by side on one scale of colours; NaN leaves its cell empty.

    The maps come by title; ``columns`` of them stand in a row, the longer side of each ``side`` pixels.
    Colours end at ``domain``, or where the values do. Cells that ``marked`` does not leave empty have a frame.
    """
    most = max(len(queries), len(keys))
    width, height = (max(40, round(side * len(names) / most)) for names in (keys, queries))
    values = torch.stack([*maps.values()]).float()
    known = values[values.isfinite()]
    reach = float(known.abs().max()) or 1.0
    ends = domain or (-reach if known.min() < 0 else 0.0, reach)
    color = alt.Color(
        "value",
        type="quantitative",
        title="Attention",
        scale=alt.Scale(domain=ends, domainMid=0 if ends[0] < 0 else alt.Undefined),
    )
    axes: dict[str, Any] = {
        "x": alt.X(
            "key",
            type="ordinal",
            title="Key token",
            axis=_token_axis("key_labels", keys, width, angle=-90),
        ),
        "y": alt.Y(
            "query",
            type="ordinal",
            title="Query token",
            axis=_token_axis("query_labels", queries, height),
        ),
    }
    drawn = [
        alt.Chart(inline(_cells(weights)), title=name, width=width, height=height)
        .mark_rect()
        .encode(color=color, **axes)
        for name, weights in maps.items()
    ]
    if marked is not None:
        frames = alt.Chart(inline(_cells(marked))).encode(**axes)
        frames = frames.mark_rect(filled=False, stroke=LIGHT.series[1], strokeWidth=0.9)
        drawn = [layered([chart, frames]) for chart in drawn]
    # As values, since Vega takes some words in an expression ("if") for its own even between quotes.
    labels = [
        alt.param(name=name, value=[shortened(visible_text(token), _LABEL) for token in names])
        for name, names in (("query_labels", queries), ("key_labels", keys))
    ]
    return ConcatChart(concat=drawn, columns=columns).properties(title=title).add_params(*labels)


def _cells(matrix: Tensor) -> list[dict[str, Number]]:
    return [
        {"query": query, "key": key, "value": float(f"{value:.4g}")}
        for query, row in enumerate(matrix.tolist())
        for key, value in enumerate(row)
        if isfinite(value)
    ]


def _token_axis(labels: str, names: Sequence[str], pixels: int, angle: int = 0) -> alt.Axis:
    step = -(-len(names) * _TICK // pixels)
    return alt.Axis(
        values=list(range(0, len(names), step)),
        labelExpr=f"{labels}[datum.value]",
        labelAngle=angle,
        labelFontSize=8,
        labelOverlap=False,
        ticks=False,
        domain=False,
    )
