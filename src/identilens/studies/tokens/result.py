"""The result of a token identifiability analysis: how many input tokens are recovered from which hidden states."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from identilens.charts.kit import Charts
from identilens.charts.page import Section
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Row, Tables, counted, decimals, integers, percent
from identilens.studies.tokens import views
from identilens.studies.tokens.views import compared, probe_words, same_layer

CELL = {
    "experiment": pl.String,
    "checkpoint": pl.Enum(["model", "compared"]),
    "probe": pl.Enum(["naive", "ridge", "linear", "mlp"]),
    "distance": pl.Enum(["cosine", "l2"]),
    **integers("layer_trained", "layer_tested", "layer_target", "offset"),
    "share": pl.Float64,
}
"""Columns that a mean over folds is taken within."""


@dataclass(frozen=True, kw_only=True)
class TokenIdentifiability(Result):
    """Every number of a token identifiability analysis, one row per cell and fold (Brunner et al. 2020, 4, B, D.1).

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> texts = [sentence for text in idl.examples() for sentence in text.split(". ")]
        >>> tokens = idl.token_identifiability(lens, texts, layers=(1, 6), probes="naive", distances="cosine", folds=2)
        >>> tokens.by_layer()
        shape: (1, 5)
        ┌───────┬──────────┬───────┬───────┬───────┐
        │ probe ┆ distance ┆ folds ┆ 1     ┆ 6     │
        │ ---   ┆ ---      ┆ ---   ┆ ---   ┆ ---   │
        │ enum  ┆ enum     ┆ u32   ┆ f64   ┆ f64   │
        ╞═══════╪══════════╪═══════╪═══════╪═══════╡
        │ naive ┆ cosine   ┆ 2     ┆ 100.0 ┆ 81.28 │
        └───────┴──────────┴───────┴───────┴───────┘
    """

    analysis: ClassVar = "tokens"
    title: ClassVar = "Token identifiability"
    schema: ClassVar = {
        "table": {
            **CELL,
            "fold": pl.Int64,
            **decimals(
                "rate", "token_rate", "train_rate", "chance", "token_chance", "validation_loss"
            ),
            **integers("tokens", "sentences", "train_tokens"),
            "learning_rate": pl.Float64,
            "penalty": pl.Float64,
            "epochs": pl.Int64,
            "best_epoch": pl.Int64,
            "converged": pl.Boolean,
        }
    }

    @property
    def experiment(self) -> str:
        """Name of the experiment."""
        return self.table["experiment"][0]

    def means(self) -> pl.DataFrame:
        """Return the mean of each measure over folds, with its standard error, one row per cell.

        Tokens and sentences are sums over folds, epochs the most, converged a share. The standard error is the folds'
        standard deviation over the root of their number, null for one fold. Folds share sentences, so it says how much
        the split matters, not how much another corpus would.
        """
        return (
            self.table.group_by(*CELL, maintain_order=True)
            .agg(
                pl.len().alias("folds"),
                pl.col("rate").mean(),
                (pl.col("rate").std() / pl.len().sqrt()).alias("rate_error"),
                pl.col(
                    "token_rate", "train_rate", "chance", "token_chance", "validation_loss"
                ).mean(),
                pl.col("tokens", "sentences").sum(),
                pl.col("learning_rate").min().name.prefix("lowest_"),
                pl.col("learning_rate").max().name.prefix("highest_"),
                pl.col("epochs").max(),
                pl.col("converged").mean(),
            )
            .sort(*CELL, maintain_order=True)
        )

    def same_layer(self) -> pl.DataFrame:
        """Return the means of the cells that are tested on the layer they were trained on."""
        return views.same_layer(self.means())

    def by_layer(self) -> pl.DataFrame:
        """Return the rates in per cent, means over folds, with a column for each layer tested.

        What differs within the result (checkpoint, layer trained on, offset, share) has columns of its own.
        """
        means = self.means()
        most = (
            self.table.group_by("layer_tested")
            .agg(pl.col("layer_trained", "offset", "share").n_unique())
            .max()
        )
        varying = [name for name in ("layer_trained", "offset", "share") if most[name].item() != 1]
        index = [
            "probe",
            "distance",
            *(["checkpoint"] if views.compared(means) else []),
            *varying,
            "folds",
        ]
        percent = means.with_columns(
            (pl.col("rate") * 100).round(2), pl.col("layer_tested").cast(pl.String)
        )
        return percent.pivot("layer_tested", index=index, values="rate")

    def summary(self) -> Finding:
        """Return how many tokens each probe recovers, and how many a guess would."""
        return finding(self.table, self.means())

    def overview(self) -> Tables:
        """Return the rates by layer."""
        return {"Recovered (%) by layer, means over folds": self.by_layer()}

    def charts(self) -> Charts:
        """Return the figures of Brunner et al. 2020, section 4, B and D.1.

        ``rate_by_layer`` (Fig. 2a, 11 to 13, 38, 39) and ``token_rate_by_layer``, ``train_and_test_<distance>``
        (Fig. 7), ``across_layers_<probe>_<distance>`` and ``across_layers_map_<probe>_<distance>`` (Fig. 2b, 8 to 10),
        ``neighbours_<probe>_<distance>`` (Fig. 14 to 17), ``rate_by_share_layer<l>`` (B.2).
        """
        return views.charts(self.means())

    def sections(self) -> list[Section]:
        """Return the report: charts with what they mean, all means, and how to read them."""
        return sections(self.means(), list(self.charts()))

    def subject(self) -> str:
        """Return what was analysed, and which experiment."""
        return f"{super().subject()}: {EXPERIMENTS[self.experiment]}"


def finding(table: pl.DataFrame, means: pl.DataFrame) -> Finding:
    """Return how many tokens each probe recovers, and how many a guess would, from a result's table and means."""
    folds = table.group_by("fold").agg(pl.col("tokens").max(), pl.col("sentences").max())
    same = same_layer(means).filter(pl.col("share") == pl.col("share").max())
    best = (
        same.filter(pl.col("layer_tested") == pl.col("layer_tested").max())
        .sort("rate")[-1]
        .row(0, named=True)
    )
    chance = means["chance"].mean()
    numbers = {
        "best_rate": best["rate"],
        "best_layer": best["layer_tested"],
        "chance": chance,
        "folds": len(folds),
        "test_tokens": folds["tokens"].mean(),
        "test_sentences": folds["sentences"].mean(),
    }
    sentences = counted(round(numbers["test_sentences"]), "sentence")
    last = (
        "Recovered: found among the tokens of its sentence, after so many layers. A probe that is trained needs many "
        f"sentences. Chance (guessing a position of the sentence): {percent(chance)}. "
        f"{counted(len(folds), 'fold')}, about "
        f"{numbers['test_tokens']:,.0f} test tokens in {sentences} each."
    )
    where = f"at layer {best['layer_tested']}" + (
        f", offset {best['offset']:+d}," if best["offset"] else ""
    )
    headline = (
        (percent(best["rate"]), f"recovered {where} by the best probe ({_name(best)})"),
        (percent(chance), "by guessing a position of the sentence (chance)"),
        (f"{len(folds)}", "folds of 70 / 15 / 15 % of the sentences"),
        (
            f"{numbers['test_tokens']:,.0f}",
            f"test tokens per fold, in {sentences} (means)",
        ),
    )
    lines = []
    for _, rows in means.group_by("checkpoint", "probe", "distance", maintain_order=True):
        first = rows.row(0, named=True)
        name = _name(first) + (f" ({first['checkpoint']})" if compared(means) else "")
        if first["folds"] < len(folds):
            name += f" (on {first['folds']} of {len(folds)} folds)"
        lines.append(f"{name}: {_recovered(rows, first['experiment'])}.")
    return Finding("\n".join([*lines, last]), numbers, headline)


def _recovered(rows: pl.DataFrame, experiment: str) -> str:
    first, last = rows["layer_trained"].min(), rows["layer_trained"].max()

    def rate(**where: Any) -> str:
        return percent(rows.filter(**where)["rate"].mean())

    if experiment == "neighbours":
        sides = [
            f"{rate(offset=offset)} at {offset:+d}" for offset in rows["offset"].unique().sort()
        ]
        return f"neighbours recovered, mean over layers: {', '.join(sides)}"
    if experiment == "data-share":
        shares = [
            f"{rate(share=share)} with {100 * share:.0f} %"
            for share in rows["share"].unique().sort()
        ]
        return f"recovered at layer {last}: {', '.join(shares)} of the training sentences"
    if experiment == "layer-to-layer":
        low, high = percent(rows["rate"].min()), percent(rows["rate"].max())
        return f"from each layer to the one below, {low} to {high} are recovered"
    words = (
        f"{rate(layer_trained=first, layer_tested=first)} of the tokens recovered at layer {first}"
    )
    if last != first:
        words += f", {rate(layer_trained=last, layer_tested=last)} at layer {last}"
    if experiment == "across-layers" and len(rows) > rows["layer_trained"].n_unique():
        low, high = rows["layer_tested"].min(), rows["layer_tested"].max()
        words += f"; trained on {first}, tested on {high}: {rate(layer_trained=first, layer_tested=high)}"
        words += (
            f"; trained on {last}, tested on {low}: {rate(layer_trained=last, layer_tested=low)}"
        )
    return words


def _name(row: Row) -> str:
    return probe_words(row["probe"], row["distance"])


EXPERIMENTS = {
    "same-layer": "each layer's own probe",
    "across-layers": "trained on one layer, tested on all",
    "layer-to-layer": "from each layer to the one below",
    "neighbours": "neighbouring tokens",
    "data-share": "share of the training data",
}
_OPTIONAL = {
    "checkpoint": "Checkpoint",
    "layer_trained": "Trained on",
    "layer_tested": "Tested on",
    "layer_target": "Recovers layer",
    "offset": "Offset",
    "share": "Training share",
}


def sections(means: pl.DataFrame, charts: Sequence[str]) -> list[Section]:
    """Return the parts of the report from the means over folds, a row per cell, and the names of its charts."""
    groups = [
        Section(anchor, title, (text,), drawn, note=_BARS)
        for anchor, (title, beginnings, text) in _GROUPS.items()
        if (drawn := [name for name in charts if name.startswith(beginnings)])
    ]
    table = Section("table", "All means", frame=means_table(means), note=_COLUMNS)
    return [*groups, table, Section("reading", "How to read this report", _READING)]


def means_table(means: pl.DataFrame) -> pl.DataFrame:
    """Return the means as a page shows them, without columns that are constant or empty."""
    shown = {name: label for name, label in _OPTIONAL.items() if means[name].n_unique() > 1}
    if means["layer_trained"].equals(means["layer_tested"], check_names=False):
        both = ("layer_trained", "layer_tested")
        shown = {
            "layer_tested": "Layer",
            **{name: label for name, label in shown.items() if name not in both},
        }
    percents = {
        "rate": "Recovered (%)",
        "rate_error": "±",
        "token_rate": "Any position (%)",
        "train_rate": "On training (%)",
        "chance": "Chance (%)",
    }
    frame = means.select(
        pl.Series(
            "Probe", [probe_words(*pair) for pair in means.select("probe", "distance").iter_rows()]
        ),
        *(pl.col(name).alias(label) for name, label in shown.items()),
        *((100 * pl.col(name)).round(1).alias(label) for name, label in percents.items()),
        pl.col("validation_loss").alias("Validation loss"),
        pl.Series("Learning rate", [_rates(row) for row in means.iter_rows(named=True)], pl.String),
        pl.col("epochs").alias("Epochs"),
        (100 * pl.col("converged")).round(1).alias("Stopped early (%)"),
        pl.col("folds").alias("Folds"),
    )
    return frame.select(column for column in frame if column.null_count() < len(column))


def _rates(row: Row) -> str | None:
    low, high = row["lowest_learning_rate"], row["highest_learning_rate"]
    return None if low is None else f"{low:g}" if low == high else f"{low:g} to {high:g}"


_GROUPS = {
    "rates": (
        "Layer by layer",
        ("rate_by_layer", "token_rate_by_layer"),
        "A probe computes a vector from the hidden state of a token. Shown is the share of test tokens whose own "
        "input vector is nearer to it than those of all other positions of the sentence (Brunner et al. 2020, Fig. "
        "2a; from layer to layer Fig. 11 to 13). The second figure also counts another position that contains the "
        "same token.",
    ),
    "across": (
        "Trained on one layer, tested on all",
        "across_layers",
        "Each line is one probe, trained on the hidden states of a single layer and tested on those of every layer "
        "(Brunner et al. 2020, Fig. 2b, 8, 9 and 10). The maps show the same numbers.",
    ),
    "neighbours": (
        "Neighbouring tokens",
        "neighbours",
        "Here the probe must recover a neighbour's input vector, to the left or to the right (Brunner et al. 2020, "
        "Fig. 14 to 17). Tokens without such a neighbour are left out.",
    ),
    "shares": (
        "How much data the probe needs",
        "rate_by_share",
        "The probe is trained on a part of the training sentences; validation and test sentences stay the same "
        "(Brunner et al. 2020, B.2). Smaller parts lie within larger ones.",
    ),
    "train": (
        "Training against test sentences",
        "train_and_test",
        "How much better a probe does on the sentences it was trained on (dashed) than on test sentences (Brunner "
        "et al. 2020, Fig. 7).",
    ),
}
"""Parts of the report: heading, how the names of their charts begin, and text."""

_BARS = "Means over folds; bars are standard errors over folds. Point at a mark for its numbers."
_COLUMNS = (
    "± is the standard error of the recovered share over folds, in percentage points. Epochs: the most that the "
    "chosen rate ran in a fold. Stopped early: share of folds that ended for lack of improvement and not at the "
    "limit of epochs."
)
_READING = (
    "Recovered: a probe g maps the hidden state e_i^l of token i after layer l to a vector. The token counts as "
    "recovered when, of the input vectors of the same sentence, x_i is the nearest to g(e_i^l) (Brunner et al. 2020, "
    "section 4). The input x is what the embedding block gives: token, position and segment. Each position is its own "
    "target, also where a token is repeated; where k inputs are equally near, the token counts as 1/k.",
    "Any position: the same, but any position of the sentence that contains the same token of the vocabulary counts.",
    "Probes: Naive is the hidden state itself. Linear is one matrix without bias. MLP has one hidden layer with GELU. "
    "Ridge is the linear L2 probe in closed form, its penalty chosen on validation sentences. Linear and MLP are "
    "trained by Adam, with early stopping on validation sentences.",
    "Distance: cosine or L2, of the loss in training and of the look-up.",
    "Folds, ±: sentences are split at random into 70 % for training, 15 % for validation and 15 % for test; no "
    "sentence is in two parts. Folds share sentences, so that ± says how much the split matters, not how much another "
    "corpus would differ.",
    "Chance: the share that guessing a position of the sentence would recover, the mean of 1/n over test tokens.",
    "What this does not say: a recovered token is still identifiable; how much of its hidden state it makes up, and "
    "whether the model uses it, is another question (see Hidden Token Attribution). A probe that fails does not prove "
    "that the token is lost: a stronger probe, more data or a longer training might find it.",
    "Source: G. Brunner, Y. Liu, D. Pascual, O. Richter, M. Ciaramita, R. Wattenhofer. On Identifiability in "
    "Transformers. ICLR 2020.",
)
