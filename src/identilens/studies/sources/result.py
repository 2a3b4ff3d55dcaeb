"""The result of splitting logits: by part, by head, and by source token with intervals."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from identilens.charts.cells import heat
from identilens.charts.encoding import AnyChart
from identilens.charts.kit import choose, choose_present, intervals
from identilens.charts.labels import shortened, visible_text
from identilens.charts.page import Section
from identilens.measures.attention.intervals import PIN_TOLERANCE
from identilens.models.token_names import unmarked
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Columns, decimals, ends, integers, percent, some_of, span
from identilens.studies.outcomes import FEW_KEYS, normed_heads

_AT: Columns = {
    "text": pl.Int64,
    "query": pl.Int64,
    "query_token": pl.String,
    "target": pl.String,
}
_HEAD: Columns = {**_AT, "tolerance": pl.String, **integers("layer", "head")}
_SHOWN, _BARS_SHOWN = 12, 30
"""Sources in a terminal, and bars of one logit."""

_SIZE = pl.col("contribution").abs()


@dataclass(frozen=True, kw_only=True)
class Sources(Result):
    """What each head adds to a logit from each source token, between proven ends.

    Attributes:
        table: One row for each logit, tolerance, head and source token: ``weight`` a_j, ``coefficient`` c_j,
            ``contribution`` a_j c_j, and ``lo`` and ``hi``, the proven ends of it over all alternatives.
        rows: One row for each head: its contribution, its ``largest`` source by absolute contribution, whether that is
            the largest in every alternative (``certified``), the total variation distance of the ``farthest``
            alternative met, by how much that ``moved`` any logit of the text when put into the model, and ``gap``.
        logits: The logit, and the parts that it is the sum of, up to ``error``. ``ends_moved``: the largest change of
            any logit of the text when rows that reach both ends of every source were put into the model, of all
            measured heads together; missing without the tolerance 0, as other rows change the heads' outputs.
        layers: The parts of each layer.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> found = idl.sources(lens, "The cat sat on the mat", layers=2, heads=4, target=" cat")
        >>> found.table.columns[-5:]
        ['weight', 'coefficient', 'contribution', 'lo', 'hi']
        >>> found.largest(1)["contribution"].abs().item() == found.table["contribution"].abs().max()
        True
    """

    analysis: ClassVar = "sources"
    title: ClassVar = "Where a logit comes from"
    schema: ClassVar = {
        "table": {
            **_HEAD,
            "key": pl.Int64,
            "token": pl.String,
            **decimals("weight", "coefficient", "contribution", "lo", "hi"),
        },
        "rows": {
            **_HEAD,
            "contribution": pl.Float64,
            "largest": pl.Int64,
            "token": pl.String,
            "certified": pl.Boolean,
            **decimals("farthest", "moved", "gap"),
        },
        "logits": {
            **_AT,
            **decimals(
                "logit",
                "embedding",
                "final_bias",
                "heads",
                "output_bias",
                "feed_forward",
                "error",
                "ends_moved",
            ),
        },
        "layers": {
            **_AT,
            "layer": pl.Int64,
            **decimals("heads", "output_bias", "feed_forward"),
        },
    }
    keys: ClassVar = {
        "table": [*_HEAD, "key"],
        "rows": list(_HEAD),
        "logits": list(_AT),
        "layers": [*_AT, "layer"],
    }

    rows: pl.DataFrame
    logits: pl.DataFrame
    layers: pl.DataFrame

    def largest(self, count: int) -> pl.DataFrame:
        """Return the sources with the largest contributions, by absolute value, for the first tolerance."""
        first = self.table.filter(pl.col("tolerance") == pl.col("tolerance").first())
        return first.sort(_SIZE, descending=True, maintain_order=True).head(count)

    def summary(self) -> Finding:
        """Return the parts of the first logit, its largest source with ends, and how many heads have a certain one."""
        logit = self.logits.row(0, named=True)
        parts = [
            f"{name} {logit[column]:z.3f}"
            for name, column in (
                ("heads", "heads"), ("feed-forward networks", "feed_forward"), ("embedding", "embedding"),
                ("output biases", "output_bias"), ("final bias", "final_bias"),
            )
        ]  # fmt: skip
        target = re.sub("(^|− )' ", r"\1'", logit["target"])
        what = "logit of" if logit["target"] != "the direction" else "last hidden state along"
        lines = [
            f"The {what} {target} after {unmarked(logit['query_token'])!r} (query {logit['query']}, text "
            f"{logit['text']}) is {logit['logit']:.3f}: {', '.join(parts)}. Their sum differs from it by "
            f"{abs(logit['error']):.1g}."
        ]
        tolerance = self.rows["tolerance"][0]
        rows = self.rows.filter(tolerance=tolerance)
        same = "exactly" if tolerance == "0" else f"up to {tolerance}"
        of_logit = self.logits.head(1).join(self.table, on=list(_AT)).filter(tolerance=tolerance)
        own = of_logit.sort(_SIZE, descending=True, maintain_order=True).row(0, named=True)
        lines.append(
            "Of the heads and tokens looked at, its largest direct source by absolute value is "
            f"{unmarked(own['token'])!r} (key {own['key']}) by head {own['head']} of layer {own['layer']}: "
            f"{own['contribution']:z.3f}. With the head's output the same, {same}, it is "
            f"{span(own['lo'], own['hi'], 'z.3f')} in every alternative."
        )
        widths = (pl.col("hi") - pl.col("lo")) / pl.col("coefficient").abs().clip(1e-300)
        if of_logit.select(widths.max()).item() < PIN_TOLERANCE:
            lines.append(
                f"Each source of this logit by these heads is the same in every alternative. {FEW_KEYS}"
            )
        certain, count = int(rows["certified"].sum()), len(rows)
        moved = rows["moved"].max()
        lines.append(
            "It is certain which source is the largest (the same in every alternative) in "
            f"{some_of(certain, count, 'row')} of heads. As a check the farthest alternatives that were found were put "
            f"into the model, head by head: no logit of the text moved by more than {moved:.1e}."
        )
        for other in self.rows["tolerance"].unique(maintain_order=True).to_list()[1:]:
            left = int(self.rows.filter(tolerance=other)["certified"].sum())
            lines.append(
                f"With outputs of heads changed by up to {other}, it is certain in {some_of(left, count, 'row')}."
            )
        lines += normed_heads(self.provenance["model"])
        if logit["ends_moved"] is not None:
            lines.append(
                "As another check, rows with each source at its least or greatest were put in for all of these heads "
                f"at once: no logit of the text moved by more than {logit['ends_moved']:.1e}."
            )
        numbers = {
            **{name: logit[name] for name in self.schema["logits"] if name not in _AT},
            "certified": certain,
            "rows": count,
            "moved": moved,
        }
        headline = [(percent(certain / count), "of the heads have a certain largest source")]
        return Finding("\n".join(lines), numbers, headline)

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the largest sources."""
        numbers = [pl.col("weight", "coefficient", "contribution").round(4), *ends(4)]
        shown = self.largest(_SHOWN).select("target", "layer", "head", "token", "key", *numbers)
        return {"Largest sources": shown}

    def charts(self) -> dict[str, AnyChart]:
        """Return ``sources``, the largest sources of each logit with their ends, and ``by_head``."""
        first = self.table.filter(pl.col("tolerance") == pl.col("tolerance").first())
        names = first.select(list(_AT)).unique(maintain_order=True).head(_BARS_SHOWN)
        largest = first.join(names.with_row_index("logit"), on=list(_AT), maintain_order="left")
        largest = largest.drop_nulls("logit").sort(_SIZE, descending=True, maintain_order=True)
        frame = largest.group_by("logit", maintain_order=True).head(_BARS_SHOWN)
        labels = [
            f"{shortened(visible_text(token), 18)} · {key}, {layer}.{head}"
            for token, key, layer, head in frame.select("token", "key", "layer", "head").rows()
        ]
        bars = intervals(
            frame.select(
                "logit", "contribution", "lo", "hi", label=pl.Series(labels, dtype=pl.String)
            ),
            "label",
            "lo",
            "hi",
            "contribution",
            x_title="Contribution to the logit, and its interval",
            height=17 * _BARS_SHOWN,
            title="Largest sources (key, head as layer.head)",
        )
        titles: dict[Any, str] = {
            number: f"text {row['text']}, query {row['query']}, {visible_text(row['target'])}"
            for number, row in enumerate(names.iter_rows(named=True))
        }
        rows = self.rows.join(names.with_row_index("logit"), on=list(_AT), maintain_order="left")
        rows = rows.select("logit", "tolerance", "layer", "head", "contribution", "certified")
        reach = float(rows["contribution"].abs().max() or 1.0)  # pyright: ignore[reportArgumentType]
        heads = heat(
            rows,
            "head",
            "layer",
            "contribution",
            diverging=True,
            domain=(-reach, reach),
            x_title="Head",
            y_title="Layer",
            color_title="Contribution",
            also=("certified",),
            title="What each head adds to the logit",
        )
        found = {"sources": bars, "by_head": choose_present(heads, rows, "tolerance", "Tolerance")}
        if len(titles) > 1:
            found = {name: choose(chart, "logit", "Logit", titles) for name, chart in found.items()}
        return found

    def sections(self) -> list[Section]:
        """Return both charts and the tables."""
        return [
            Section("sources", "Sources", _SOURCES, ["sources"]),
            Section("heads", "Heads", _HEADS, ["by_head"], self.rows),
            Section("logits", "The logit and its parts", frame=self.logits),
            Section("layers", "Layers in numbers", frame=self.layers),
            Section("table", "Sources in numbers", frame=self.table),
        ]


_SOURCES = (
    "The point is what a head adds to the logit from one token, the bar everything that it may add from there while "
    "the head's output stays the same, up to the tolerance: both ends are proven.",
)
_HEADS = (
    "What a head adds in all is the same in every alternative with exactly its output (tolerance 0). Certified: the "
    "source with the largest contribution, by absolute value, is the largest in every alternative.",
)
