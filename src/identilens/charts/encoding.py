"""How a column of a data frame becomes an axis, a colour or a line of the tooltip."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from textwrap import wrap
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import altair as alt
import polars as pl
from polars import selectors

from identilens.charts.figures import Chart, LayerChart
from identilens.charts.labels import visible_text

AnyChart = alt.Chart | alt.LayerChart | alt.ConcatChart
Number = int | float
Channel = TypeVar("Channel", bound=alt.SchemaBase)

MOST_MARKS = 20_000
_MOST_CLASSES = 8
_DIGITS = 6
_LINE = 40


class Look(TypedDict, total=False):
    """What every builder takes by name.

    Attributes:
        title: Heading of the chart.
        labels: What columns are called on axes, legends and tooltips; their names where not given.
        x_scale: A logarithmic x axis ("log"), on which values of zero or less are left out; or one by square root
            ("sqrt"), for values from 0 up of which a few are much larger than the others.
        x_domain: Ends of the x axis.
        y_domain: Ends of the y axis.
        also: Further columns to show on hovering.
        height: Pixels.
    """

    title: str
    labels: Mapping[str, str]
    x_scale: Literal["log", "sqrt"]
    x_domain: tuple[Number, Number]
    y_domain: tuple[Number, Number]
    also: Sequence[str]
    height: int


def base_chart(
    frame: pl.DataFrame,
    x: str,
    y: str,
    color: str | None = None,
    *,
    grouped: str = "",
    **look: Unpack[Look],
) -> alt.Chart:
    """Return a chart without marks whose axes, colours and tooltip are set.

    Numbers on the ``grouped`` axes ("x", "y", "xy") are names of groups; text always is. Of very many rows, every
    second, third, … is drawn, and the title says so.
    """
    if (step := -(-len(frame) // MOST_MARKS)) > 1:
        title = f"{look.get('title', '')} (one of every {step} of {len(frame):,} values)"
        frame, look = frame.gather_every(step), Look(**look) | {"title": title.strip()}
    names = dict.fromkeys([x, y, color, *look.get("also", ())])
    labels = look.get("labels", {})
    axes = {
        "x": _axis(alt.X, frame, x, look, "x", grouped),
        "y": _axis(alt.Y, frame, y, look, "y", grouped),
        "tooltip": [_tip(frame, name, labels.get(name) or name) for name in names if name],
    }
    if color:
        axes["color"] = color_of(frame, color).title(labels.get(color, color))
    return Chart(
        _values(frame, x if look.get("x_scale") == "log" else None),
        width="container",
        height=look.get("height", alt.Undefined),
        title=look.get("title", alt.Undefined),
    ).encode(**axes)


def layered(layers: Sequence[Any]) -> alt.LayerChart:
    """Return charts on top of each other, with the size and words of the first."""
    names = ("width", "height", "title")
    bare = [layer.copy(deep=False) for layer in layers]
    for layer, name in product(bare, names):
        layer[name] = alt.Undefined
    return LayerChart(layer=bare, **{name: layers[0][name] for name in names})


def field(column: str) -> str:
    """Return a column's name as a field that Vega reads as one name: no dots, brackets or quotes."""
    return re.sub(r"\W", lambda mark: f"_{ord(mark.group()):x}_", column)


def color_of(frame: pl.DataFrame, column: str) -> alt.Color:
    """Return colours: a class each for text, a gradient for numbers."""
    if frame.schema[column].is_numeric():
        colors = alt.Color(field(column), type="quantitative").scale(zero=False)
        values = frame[column].drop_nulls().unique().sort().to_list()
        return colors.legend(values=values, format="~g") if len(values) <= _MOST_CLASSES else colors
    return named(alt.Color, frame, column)


def named(channel: type[Channel], frame: pl.DataFrame, column: str) -> Channel:
    """Return a channel of names in the order in which the frame has them, whatever a choice leaves of them."""
    names = frame[column].drop_nulls().unique(maintain_order=True)
    values = list(map(shown, names.sort() if names.dtype.is_numeric() else names))
    scale = alt.Undefined if channel in (alt.X, alt.Y) else alt.Scale(domain=values)
    return channel(field(column), type="nominal", title=column, sort=values, scale=scale)


def on_field(axis: Channel, column: str) -> Channel:
    """Return an axis with the values of another field."""
    changed = axis.copy(deep=False)
    changed["shorthand"] = field(column)
    return changed


def shown(value: Any) -> Any:
    """Return a value of a frame as the chart's data has it."""
    return visible_text(value) if isinstance(value, str) else value


def _axis(
    channel: Any, frame: pl.DataFrame, column: str, look: Look, axis: str, grouped: str
) -> Any:
    # Long titles stand in lines, so that a phone has room for them.
    words = look.get("labels", {}).get(column, column)
    long = axis == "x" and len(words) > _LINE
    title = wrap(words, _LINE) if long else words or None
    if axis in grouped or not frame.schema[column].is_numeric():
        return named(channel, frame, column).title(title).axis(labelAngle=0, labelOverlap=True)
    scale, ends = look.get(f"{axis}_scale", alt.Undefined), look.get(f"{axis}_domain")
    integer = frame.schema[column].is_integer()
    return channel(
        field(column),
        type="quantitative",
        title=title,
        scale=alt.Scale(
            type=scale,
            domain=ends or alt.Undefined,
            zero=False if axis == "x" and scale != "log" and not grouped else alt.Undefined,
            nice=False if ends else alt.Undefined,
        ),
        axis=alt.Axis(
            format=",d" if integer else alt.Undefined,
            tickMinStep=1 if integer and scale != "log" else alt.Undefined,
        ),
    )


def _tip(frame: pl.DataFrame, column: str, title: str) -> alt.Tooltip:
    kind = frame.schema[column]
    number = ".4~g" if kind.is_float() else alt.Undefined
    scale = "quantitative" if kind.is_numeric() else "nominal"
    return alt.Tooltip(field(column), type=scale, title=title, format=number)


def _values(frame: pl.DataFrame, log: str | None) -> alt.InlineData:
    """Return the rows as Vega reads them: no NaN, no infinity, no text that moves other text about.

    Of a column on a logarithmic axis, only numbers above zero stay.
    """
    finite = selectors.float()
    clean = frame.with_columns(pl.when(finite.is_finite()).then(finite.round_sig_figs(_DIGITS)))
    if log:
        clean = clean.with_columns(pl.when(pl.col(log) > 0).then(pl.col(log)))
    names = list(map(field, clean.columns))
    return inline([dict(zip(names, map(shown, row), strict=True)) for row in clean.iter_rows()])


def inline(rows: Sequence[Mapping[str, Any]]) -> alt.InlineData:
    """Return rows as data of a chart; of any number, and without the minutes that Altair takes to check them."""
    data = alt.InlineData(values=[])
    data["values"] = rows
    return data
