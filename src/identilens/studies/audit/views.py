"""How an audit is drawn."""

import polars as pl

from identilens.charts.cells import heat
from identilens.charts.encoding import AnyChart, Look, layered
from identilens.charts.kit import choose, lines, rule, scatter
from identilens.charts.labels import visible_text
from identilens.runs.tables import counted
from identilens.studies.audit.heads import MOSTLY
from identilens.studies.head_views import choose_kind
from identilens.studies.outcomes import INFLUENTIAL

_CERTAIN = "Mean certain mass up to bfloat16's rounding"

MOST_POINTS = 5000
"""With more maps than this, the correlation chart shows means instead of one point a map."""


def null_share_map(by_head: pl.DataFrame) -> AnyChart:
    """Return the mean null share of every layer and head."""
    return _head_map(by_head, "null_share", "Mean null share", (0.0, 1.0))


def certain_mass_map(by_head: pl.DataFrame) -> AnyChart:
    """Return the mean certain mass of every layer and head."""
    return _head_map(by_head, "certain_mass_bfloat16", _CERTAIN, (0.0, 1.0))


def determined_and_influential(heads: pl.DataFrame) -> AnyChart:
    """Return every head by its two axes: certain mass across, effect on the answer as a share of the largest up."""
    known = heads.drop_nulls("group")
    chart: AnyChart = scatter(
        known.select(
            "kind",
            "layer",
            "head",
            "group",
            "certain_mass_bfloat16",
            "relative_effect",
            "relative_output",
            "sink_token",
            "sink_mass",
        ),
        "certain_mass_bfloat16",
        "relative_effect",
        "group",
        title="Every head: how much is certain, and its effect",
        x_title=_CERTAIN,
        y_title="Effect / largest effect (influential)",
        color_title="Head",
        x_domain=(0, 1),
        y_domain=(0, 1.05),
        also=["layer", "head", "relative_output", "sink_token", "sink_mass"],
    )
    chart = rule(chart, x=MOSTLY, label="")
    for outcome in known["outcome"].unique():
        chart = rule(chart, y=INFLUENTIAL[outcome], label="")
    return choose_kind(chart, known)


def correlation_map(by_head: pl.DataFrame) -> AnyChart:
    """Return the mean correlation of raw and effective attention of every layer and head."""
    title = "Mean Pearson correlation of raw and effective attention"
    return _head_map(by_head, "pearson", title, (-1.0 if any(by_head["pearson"] < 0) else 0.0, 1.0))


def heads_note(by_head: pl.DataFrame) -> str:
    """Return what the maps by layer and head leave unsaid."""
    missing = by_head["pearson"].null_count()
    blank = f" {counted(missing, 'head')} without a correlation, as all entries are equal in every text, stay blank."
    return (
        "Layers and heads count from 0. Colours run from 0 to 1 (from −1 where a mean correlation is negative), the "
        f"same in every report, unless stretched.{blank if missing else ''}"
    )


def correlation_by_length(table: pl.DataFrame) -> AnyChart:
    """Return the correlation of raw and effective attention by number of keys (Brunner et al. 2020, Fig. 1a)."""
    points, _ = correlation_points(table)
    near = d_v_lines(table)
    ends = [1.0, *points["length"], *(d_v for _, d_v in near)]
    low = min([0.0, *points["pearson"]])
    chart: AnyChart = scatter(
        points,
        "length",
        "pearson",
        None if points.is_empty() else "layer",
        title="Correlation of raw and effective attention by length",
        color_title="Layer",
        x_title="Length (number of keys, tokens)",
        y_title="Pearson correlation (raw, effective)",
        x_domain=(0, 1.04 * max(ends)),
        y_domain=(1.06 * low if low < 0 else -0.02, 1.03),
        also=[name for name in ("text", "head", "maps") if name in points.columns],
        size=18,
    )
    for kind, d_v in near:
        chart = rule(chart, x=d_v, label=f"d_v = {d_v}", kind=kind)
    return choose_kind(chart, table)


def correlation_points(table: pl.DataFrame, most: int = MOST_POINTS) -> tuple[pl.DataFrame, int]:
    """Return correlation against length, and how many lengths share a point.

    There is one point a map (0 lengths share one), or means over neighbouring lengths where there are more maps than
    ``most``.
    """
    defined = table.filter(pl.col("pearson").is_finite())
    if len(defined) <= most:
        return defined.select("kind", "layer", "head", "text", "pearson", length="n_key"), 0
    width = 1
    while len(points := _grouped(defined, width)) > most:
        width *= 2
    return points, width


def d_v_lines(table: pl.DataFrame) -> list[tuple[str, int]]:
    """Return each kind and size of a head's values that is not far above every length."""
    sizes = table.group_by("kind", "d_v", maintain_order=True).agg(pl.col("n_key").max())
    return [(kind, d_v) for kind, d_v, longest in sizes.iter_rows() if d_v <= 3 * longest]


def length_note(table: pl.DataFrame) -> str:
    """Return what a point of the chart by length is, and what is not on it."""
    points, width = correlation_points(table)
    undefined = len(table) - len(table.filter(pl.col("pearson").is_finite()))
    span = f"{width} neighbouring lengths" if width > 1 else "one length"
    many = f"{len(table) - undefined:,} maps in all, too many to show one by one"
    said = [f"Each point is one map (one text, layer and head); {len(points):,} in all."]
    if points.is_empty():
        said = ["No map has a correlation: all entries are equal in every map."]
    elif width:
        said = [f"Each point is the mean over the maps of {span} in one layer ({many})."]
    if undefined:
        said.append(
            f"{counted(undefined, 'map')} without a correlation {'is' if undefined == 1 else 'are'} left out."
        )
    near = {d_v for _, d_v in d_v_lines(table)}
    if far := [str(d_v) for d_v in table["d_v"].unique().sort() if d_v not in near]:
        said.append(
            f"d_v = {', '.join(far)} lies far to the right: every map here has fewer keys than that."
        )
    return " ".join([*said, "Layers count from 0."])


def received_chart(received: pl.DataFrame, weights: str) -> AnyChart:
    """Return raw or effective attention received by token types, on one scale (Brunner et al. 2020, Fig. 1b, 1c)."""
    both = [0.0, 0.05, *received["raw"], *received["effective"]]
    room = 0.04 * (max(both) - min(both))
    look = Look(
        title=f"{weights.capitalize()} attention received",
        x_title="Layer (from 0)",
        y_title="Mean attention received",
        color_title="Token type",
        y_domain=(min(both) - room, max(both) + room),
    )
    heads = received.select("kind", "layer", "head", "key_type", weights)
    means = heads.group_by("kind", "layer", "key_type", maintain_order=True).agg(
        pl.col(weights).mean()
    )
    drawn = [
        scatter(heads, "layer", weights, "key_type", size=10, **(look | Look(also=["head"]))),
        lines(means, "layer", weights, "key_type", **look),
    ]
    return choose_kind(layered(drawn), received)


def attention_to_type(token_types: pl.DataFrame) -> AnyChart:
    """Return what tokens of each type put on one type, raw and effective, as means over heads (Fig. 5)."""
    keys = ["kind", "layer", "query_type", "key_type", "Weights"]
    attention = pl.col("attention")
    means = (
        token_types.unpivot(
            ["raw", "effective"], index=keys[:-1], variable_name="Weights", value_name="attention"
        )
        .group_by(keys, maintain_order=True)
        .agg(
            attention.mean(),
            attention.min().alias("Lowest head"),
            attention.max().alias("Highest head"),
        )
        # In the order of the other charts of types, so that colours are the same.
        .sort("key_type", "query_type", maintain_order=True)
    )
    chart = lines(
        means,
        "layer",
        "attention",
        "query_type",
        dash="Weights",
        title="Attention put on one type, by type of the query token",
        x_title="Layer (from 0)",
        y_title="Mean attention put on it",
        color_title="Query token",
        also=["Weights", "Lowest head", "Highest head"],
    )
    types = token_types["key_type"].unique(maintain_order=True)
    return choose_kind(
        choose(chart, "key_type", "Attention to", {name: visible_text(name) for name in types}),
        token_types,
    )


def _head_map(
    by_head: pl.DataFrame, measure: str, title: str, domain: tuple[float, float]
) -> AnyChart:
    chart = heat(
        by_head.select("kind", "layer", "head", measure),
        "head",
        "layer",
        measure,
        domain=domain,
        diverging=domain[0] < 0,
        stretch=True,
        title=title,
        x_title="Head",
        y_title="Layer",
        color_title=" ".join(title.split()[:3]),
    )
    return choose_kind(chart, by_head)


def _grouped(defined: pl.DataFrame, width: int) -> pl.DataFrame:
    middle = (pl.col("n_key") // width) * width + (width - 1) / 2
    groups = ["kind", "length", "layer"]
    return (
        defined.with_columns(length=middle)
        .group_by(groups)
        .agg(pl.col("pearson").mean(), maps=pl.len())
        .sort(groups)
    )
