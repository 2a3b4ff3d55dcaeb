"""How an audit is drawn, and how to read it."""

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


def certain_and_influential(heads: pl.DataFrame) -> AnyChart:
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


AXES = (
    "Certain: how much of a row's attention stays on the same keys in every alternative, that is, in every "
    "distribution over the same keys with the same output. For each weight the least value over all alternatives is "
    "found by a linear program; their sum is the row's certain mass. No alternative lies farther away than 1 − certain "
    "mass (total variation).",
    "Influential: what happens to the model's answer without the head. It is removed from the model, and everything "
    "after it is computed again: the prediction changes by so many nats (KL divergence, the mean over positions), "
    "or, of a model without predictions, the final hidden states by a share of their length. A head is called "
    "influential when the prediction changes by at least a tenth, or the states by 0.3, of the change without the "
    "head that matters most. How large a head's output is stands beside it, relative to the mean of its layer's heads. "
    "The sink is the structural token (the first one, a special token, a full stop or a comma) that receives most of a "
    "map's attention. Its share of the norm says how much of the head's output comes from there.",
    "Neither axis follows from the other, and neither from the null share: a weight may lie in a direction without "
    "effect and still be fixed, because weights are non-negative and sum to 1.",
)
GROUPS = (
    "Both axes are continuous; groups are names of the chart's corners. A head is mostly certain when at least half of "
    "its attention, on average, stays on the same keys in every alternative whose output differs by no more than a "
    "rounding to bfloat16 (certain mass), else mostly open. It is influential when the model's prediction changes "
    "without it by at least a tenth (its final hidden states by 0.3) of the change without the head that matters most. "
    "Neither follows from the other. The lines in the chart stand at these two limits."
)
NO_ROWS = (
    "Certain mass or effects were not computed, so this report does not say how much of each head is certain, and "
    "which heads are influential. Choose a number of rows for each map with --certain-rows 4, and --effects removal "
    "(in Python: certain_rows=4, effects='removal')."
)
HEADS = (
    "Null share is the part of a map's squared weight in directions without effect on the head's output; it does not "
    "say that weights are free. Correlation compares a map with its effective attention (1: the same pattern). Both "
    "are means over texts."
)
LENGTH = (
    "How much the raw map looks like the effective one, by the number of keys (Brunner et al. 2020, Fig. 1a). The "
    "dashed line stands at d_v, the size of a head's values. The rank is at most d_v, so with more keys than that "
    "every map has a null space, and it grows with length."
)
TYPES = (
    "How much attention goes to each type of token: the model's special tokens, full stops and commas (“. ,”) and all "
    "others; sums over the tokens of a type, averaged over query tokens and texts. Effective attention can be "
    "negative.",
    "Received from all tokens (Brunner et al. 2020, Fig. 1b and 1c): a small point is a head, a line the mean over "
    "the heads of a layer. Raw and effective share one scale.",
    "Put on one type, by type of the query token (Brunner et al. 2020, Fig. 5): means over the heads of a layer, raw "
    "attention beside effective attention; pointing at a mean gives the lowest and the highest head.",
)
MAPS = (
    "Every map that was kept; of long texts, means over blocks of tokens. Click a row of a whole map to see how far "
    "each of its weights could move without changing the output, and how much each key contributes. Raw "
    "attention is the sum of its effective and its null part, cell by cell "
    "(Brunner et al. 2020, Fig. 6); the null part has no effect on the output."
)
NO_MAPS = (
    "This audit saved no attention matrices, so there is no map to look at. Those of --examples 3 texts are saved: "
    "whole up to --example-length 128 tokens, as means over blocks of longer texts. --matrices saves all "
    "(in Python: examples=3, example_length=128, matrices=True)."
)
READING = (
    "Raw attention, head output. Raw attention A is what a head computes after the softmax: each row has the weight of "
    "every key token for one query token. The head's output is A T, where T has one row for each key token: its value "
    "vector (bias included, unless the setting “value bias” is “out”) times the head's block of the output projection.",
    "Null space, rank, nullity. Weights can be changed by any x with xᵀT = 0 without changing the output: these x are "
    "the left null space of T. Its dimension, the nullity, is the number of keys less the rank of T, and the rank is "
    "at most d_v, the size of a head's values (Brunner et al. 2020, Eq. 6). Where it is 0, every direction of the "
    "weights has an effect. Changes that also keep the sum of each row have the simplex nullity as their dimension; "
    "it is at most one less.",
    "Effective and null attention. A = effective + null, row by row. Null attention lies in the left null space and "
    "has no effect on the output; effective attention is the part that the output depends on: it is orthogonal to the "
    "null part and is the smallest weights (in squared sum) with the same output (Brunner et al. 2020, Eq. 8 and 9). "
    "Effective attention can be negative, and its rows need not sum to 1.",
    "Certain mass. Σ_j lo_j of a row, with lo_j the least value of the weight on key j over all alternatives: 1 when "
    "the output fixes the row, 0 when every single weight might be zero. It is the mean over the rows that were drawn; "
    "its error is the standard error of that mean for the map. Alternatives have the same output exactly, or up to a "
    "rounding to bfloat16, the precision of most models in use: a change of 2⁻⁸ (0.4 %) of the output's length. With "
    "no more keys than d_v, no other weights have exactly the same output, but many have nearly the same.",
    "Simplex null share. The squared share of A that also keeps the sum of each row (the part in the null space of T "
    "with a column of ones); it is never larger than the null share. Both count directions and say nothing about how "
    "far a weight can go before one turns negative.",
    "Null share. ‖null‖² / ‖A‖², over all entries of a map; between 0 and 1: the share of the squared weight that lies "
    "in directions without effect on the output.",
    "Correlation. Pearson's correlation between the entries of raw and of effective attention, over the keys that "
    "each query may see. It is undefined where all entries are equal, as for a text of one token.",
    "Masked attention. Where a query sees only some keys (decoders, sliding windows), its null space is that of T "
    "restricted to those keys. Rank and nullity of such a map are those of its last row, the simplex nullity is the "
    "largest of its rows.",
    "Zero in floating point. The rank counts singular values of T above max(n, d_model) · eps · (the largest of "
    "them), with eps of float32, as in Bhardwaj et al. 2021. The reconstruction error, ‖effective · T − A T‖ / ‖A T‖, "
    "says how exactly effective attention gives the same output.",
    "What this does not say. A large null share does not mean that the weights are free: weights must also be "
    "non-negative and sum to 1. Certain mass says how much is fixed; “identilens certify” gives the "
    "range of each weight. A fixed weight can still be unimportant: look at its share of the norm. A map "
    "with a large null share is not wrong: the model did compute it. But an interpretation of its null part alone is "
    "one of directions without effect on the output. A map without a null space is not an explanation of a prediction.",
    "Sources. G. Brunner, Y. Liu, D. Pascual, O. Richter, M. Ciaramita, R. Wattenhofer. On Identifiability in "
    "Transformers. ICLR 2020. — R. Bhardwaj, N. Majumder, S. Poria, E. Hovy. More Identifiable yet Equally Performant "
    "Transformers for Text Classification. ACL 2021. — K. Clark, U. Khandelwal, O. Levy, C. D. Manning. What Does "
    "BERT Look At? An Analysis of BERT's Attention. BlackboxNLP 2019 (conventions of the token types). The end "
    "of the page says how to cite this run.",
)
