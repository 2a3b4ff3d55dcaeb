"""Charts over data frames: short builders that return one Altair view, as wide as its page.

Every builder takes a frame, the columns to draw and the words of `Look`. Text is shown by `visible_text`. The frame
should hold only the columns to draw and those to `choose` by.
"""

from typing import Any, Unpack

import altair as alt
import polars as pl

from identilens.charts.encoding import (
    AnyChart,
    Look,
    Number,
    base_chart,
    field,
    inline,
    layered,
    named,
    on_field,
    shown,
)

Charts = dict[str, AnyChart]
"""Charts by name."""

CHOICE = "choose_"
"""What the names of a drop-down's parameters begin with."""

BOX = ("low", "q1", "median", "q3", "high")
"""Columns of a box: whiskers, quartiles and the median."""

_ROW = 17


def lines(
    frame: pl.DataFrame,
    x: str,
    y: str,
    color: str | None = None,
    *,
    dash: str | None = None,
    error: str | None = None,
    points: bool = True,
    **look: Unpack[Look],
) -> alt.LayerChart:
    """Return y by x, one line for each value of ``color`` and ``dash``; a null breaks its line.

    Numbers as ``color`` (layers) get ordered colours. ``error`` is a column of distances, drawn as bars up and down.
    """
    base = base_chart(frame, x, y, color, **look)
    split = [alt.Detail(field(name), type="nominal") for name in (color, dash) if name]
    line = base.mark_line(point=False).encode(detail=split)
    layers = [line.encode(strokeDash=named(alt.StrokeDash, frame, dash)) if dash else line]
    if error:
        value, half = (f"datum['{field(name)}']" for name in (y, error))
        ends = base.transform_calculate(_low=f"{value} - {half}", _high=f"{value} + {half}")
        layers.insert(0, ends.mark_rule().encode(y=on_field(base.encoding.y, "_low"), y2="_high"))
    if points:
        layers.append(_points(base, frame, color))
    return layered(layers)


def scatter(
    frame: pl.DataFrame,
    x: str,
    y: str,
    color: str | None = None,
    *,
    span: tuple[str, str] | None = None,
    **look: Unpack[Look],
) -> AnyChart:
    """Return a point for every row, coloured by ``color``, and shaped by it where it is text.

    ``span`` are the columns of both ends of a line through each point.
    """
    base = base_chart(frame, x, y, color, **look)
    points = _points(base, frame, color)
    if span is None:
        return points
    line = base.mark_rule(opacity=0.5).encode(
        y=on_field(base.encoding.y, span[0]), y2=field(span[1])
    )
    return layered([line, points])


def bars(
    frame: pl.DataFrame, value: str, group: str, color: str, **look: Unpack[Look]
) -> alt.Chart:
    """Return lying bars from zero for each group, one below the other for the values of ``color``."""
    look = Look(height=_room(frame, group, color)) | look
    base = base_chart(frame, value, group, color, grouped="y", **look)
    return base.encode(yOffset=named(alt.YOffset, frame, color)).mark_bar()


def intervals(
    frame: pl.DataFrame,
    label: str,
    low: str,
    high: str,
    value: str,
    color: str | None = None,
    **look: Unpack[Look],
) -> alt.LayerChart:
    """Return a lying bar from ``low`` to ``high`` for each label, in the frame's order, with a point at ``value``."""
    look = Look(height=_room(frame, label), also=(low, high)) | look
    base = base_chart(frame, value, label, color, grouped="y", **look)
    span = base.mark_bar(opacity=0.4, size=12).encode(
        x=on_field(base.encoding.x, low), x2=field(high)
    )
    known = [span] if frame[low].is_finite().any() else []
    return layered([*known, base.mark_point(filled=True, opacity=1, size=40)])


def boxes(frame: pl.DataFrame, group: str, **look: Unpack[Look]) -> alt.LayerChart:
    """Return a lying box for each group, one below the other in the frame's order, from the columns of `BOX`."""
    look = Look(height=_room(frame, group)) | look
    base = base_chart(frame, "median", group, grouped="y", **look)
    axis = base.encoding["x"]
    whiskers = base.mark_rule().encode(x=on_field(axis, "low"), x2="high")
    thick: dict[str, Any] = {"height": {"band": 0.7}}
    box = base.mark_bar(opacity=0.4, **thick).encode(x=on_field(axis, "q1"), x2="q3")
    return layered([whiskers, box, base.mark_tick(thickness=2.5, **thick)])


def rule(chart: AnyChart, **values: Number) -> alt.LayerChart:
    """Return a chart with a dashed line across it, standing at ``x`` or lying at ``y``."""
    line = alt.Chart(inline([{}])).mark_rule(strokeDash=[5, 4])
    return layered(
        [chart, line.encode(**{axis: alt.datum(value) for axis, value in values.items()})]
    )


def choose(chart: AnyChart, frame: pl.DataFrame, column: str, label: str) -> AnyChart:
    """Return a chart with a drop-down of the values of a frame's column, in its order, where there are several.

    The chart shows the rows of one value, at first of the first.
    """
    values = frame[column].drop_nulls().unique(maintain_order=True).to_list()
    if len(values) < 2:
        return chart
    options = list(map(shown, values))
    bind = alt.binding_select(options=options, labels=list(map(str, values)), name=f"{label} ")
    param = alt.param(name=CHOICE + field(column), value=options[0], bind=bind)
    datum = f"datum['{field(column)}']"
    return _filtered(chart, f"!isDefined({datum}) || {datum} === {param.name}").add_params(param)


def _filtered(chart: AnyChart, test: str) -> Any:
    if isinstance(chart, alt.Chart):
        return chart.transform_filter(test)
    changed = chart.copy(deep=False)
    changed["layer"] = [_filtered(part, test) for part in chart["layer"]]
    return changed


def _points(base: alt.Chart, frame: pl.DataFrame, color: str | None) -> alt.Chart:
    drawn = base.mark_point(filled=True, opacity=0.8, size=30)
    if color is None or frame.schema[color].is_numeric():
        return drawn
    return drawn.encode(shape=named(alt.Shape, frame, color).title(base.encoding.color["title"]))


def _room(frame: pl.DataFrame, group: str, color: str | None = None) -> int:
    return _ROW * frame.select({group, color or group}).n_unique() + 10
