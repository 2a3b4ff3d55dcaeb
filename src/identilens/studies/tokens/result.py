"""The result of a token identifiability analysis: how many input tokens are recovered from which hidden states."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.kit import lines
from identilens.charts.views import View
from identilens.runs.result import Finding, Result
from identilens.runs.tables import decimals, integers

CELL = {
    "experiment": pl.String,
    "probe": pl.Enum(["naive", "linear", "mlp"]),
    "distance": pl.Enum(["cosine", "l2"]),
    **integers("layer_trained", "layer_tested", "layer_target", "offset"),
    "share": pl.Float64,
}
"""Columns that a mean over folds is taken within."""

_LINES = {"across-layers": "layer_trained", "neighbours": "offset"}
"""Column that tells the lines of a chart by layer apart, by experiment."""
_BY_LAYER = ("same-layer", "across-layers", "layer-to-layer")
_RATES = {"y_domain": (0, 1)}
_MEAN = {**_RATES, "error": "rate_error"}
_ALSO = ("rate_error", "folds")
_FINDING = """\
At {where}, the last with a probe of its own, the {probe} probe with {distance} distance does best: {best_rate:.1%} of \
the tokens are found among those of their sentence; guessing a position would find {chance:.1%}.
The hidden state itself, without training, recovers {naive_rate:.1%} there.
The best is of {folds:fold}, tested on {tokens:token} of {sentences:sentence} together; a probe that is trained needs \
many.
"""
_TILES = """\
{best_rate:.1%} | recovered at {where} by the best probe ({probe}, {distance})
{chance:.1%} | by guessing a position of the sentence (chance)
{folds} | folds of 70 / 15 / 15 % of the sentences
{tokens:,} | test tokens of all folds
"""
_LAYERS = """\
A probe computes a vector from the hidden state of a token. Shown is the share of test tokens whose own input vector \
is nearer to it than those of all other positions of the sentence (Brunner et al. 2020, Fig. 2a; from layer to layer \
Fig. 11 to 13). Bars are standard errors over folds, which share sentences: they say how much the split matters, not \
how much another corpus would differ.
A recovered token is still identifiable; how much of its hidden state it makes up, and whether the model uses it, is \
another question. A probe that fails does not prove that the token is lost.
"""
_TRAIN = """\
How much better a probe does on the sentences it was trained on than on test sentences (Brunner et al. 2020, Fig. 7).
"""
_BY_LINE = """\
Each line is one probe, trained on the hidden states of a single layer and tested on those of every layer (Brunner et \
al. 2020, Fig. 2b, 8, 9 and 10), or one neighbour whose input vector is recovered, to the left (negative) or to the \
right (Fig. 14 to 17). Tokens without such a neighbour are left out.
"""
_SHARES = """\
The probe is trained on a part of the training sentences; validation and test sentences stay the same (Brunner et al. \
2020, B.2). Smaller parts lie within larger ones.
"""


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
            **integers("epochs", "best_epoch"),
            "converged": pl.Boolean,
        }
    }

    words: ClassVar = {
        "rate": "Share recovered",
        "rate_error": "Standard error: of the recovered share, over folds",
        "train_rate": "Share recovered on training sentences",
        "curve": "Probe",
        "share": "Training sentences used",
        "converged": "Stopped early: share of folds that ended for lack of improvement, not at the limit of epochs",
        "layer_tested": "Layer tested on",
        "layer_trained": "Layer trained on",
        "line": "Layer trained on, or neighbour",
    }
    views: ClassVar = {
        "by_layer": View(
            title="Recovered (%) by layer, means over folds", table="by_layer", listed=True
        ),
        "rate_by_layer": View(
            lines,
            ("layer_tested", "rate", "curve"),
            title="Recovered, by layer",
            text=_LAYERS,
            table="own_layers",
            also=_ALSO,
            look=_MEAN,
        ),
        "lines": View(
            lines,
            ("layer_tested", "rate", "line"),
            title="Recovered, by layer trained on or neighbour",
            text=_BY_LINE,
            table="by_line",
            also=_ALSO,
            choices=("curve",),
            look=_MEAN,
        ),
        "rate_by_share": View(
            lines,
            ("share", "rate", "curve"),
            title="Recovered, by share of the training sentences",
            text=_SHARES,
            table="shares",
            also=_ALSO,
            choices=("layer_trained",),
            look=_MEAN,
        ),
        "train_and_test": View(
            lines,
            ("layer_tested", ("rate", "train_rate"), "measure"),
            title="Training and test sentences",
            text=_TRAIN,
            table="trained",
            choices=("curve",),
            look=_RATES,
        ),
    }

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
            .with_columns(curve=pl.format("{}, {}", "probe", "distance"))
        )

    def same_layer(self) -> pl.DataFrame:
        """Return the means of the cells that are tested on the layer they were trained on."""
        return self.means().filter(pl.col("layer_trained") == pl.col("layer_tested"))

    def own_layers(self) -> pl.DataFrame:
        """Return the cells that `same_layer` returns, for experiments on layers."""
        return self.same_layer().filter(pl.col("experiment").is_in(_BY_LAYER))

    def trained(self) -> pl.DataFrame:
        """Return those of `own_layers` with a rate on training sentences."""
        return self.own_layers().drop_nulls("train_rate")

    def by_line(self) -> pl.DataFrame:
        """Return the cells of probes that are tested on all layers, or of neighbours; ``line`` tells them apart."""
        column = _LINES.get(self.table["experiment"][0], "curve")
        cells = self.means().filter(pl.col("experiment").is_in([*_LINES]))
        return cells.rename({column: "line"})

    def shares(self) -> pl.DataFrame:
        """Return the cells of shares of the training sentences."""
        return self.means().filter(experiment="data-share")

    def by_layer(self) -> pl.DataFrame:
        """Return the rates in per cent, means over folds, with a column for each layer tested.

        What differs within the result (layer trained on, offset, share) has columns of its own.
        """
        means, names = self.means(), ["layer_trained", "offset", "share"]
        values = means.group_by("layer_tested").agg(pl.col(names).n_unique()).max()
        varying = [name for name in names if values[name][0] > 1]
        percent = means.with_columns(
            (pl.col("rate") * 100).round(2), pl.col("layer_tested").cast(pl.String)
        )
        return percent.pivot(
            "layer_tested", index=["probe", "distance", *varying, "folds"], values="rate"
        )

    def summary(self) -> Finding:
        """Return how many tokens the best probe recovers, and how many a guess would."""
        last = self.same_layer().filter(
            pl.col("share") == pl.col("share").max().over("probe"),
            pl.col("layer_tested") == pl.col("layer_tested").max(),
        )
        best = last.sort("rate", maintain_order=True).row(-1, named=True)
        naive = last.filter(probe="naive", offset=best["offset"])["rate"]
        offset = f", offset {best['offset']:+d}" * bool(best["offset"])
        return Finding.of(
            _FINDING,
            _TILES,
            probe=best["probe"],
            distance=best["distance"],
            where=f"layer {best['layer_tested']}{offset}",
            best_rate=best["rate"],
            naive_rate=naive.max(),
            **{name: best[name] for name in ("chance", "folds", "tokens", "sentences")},
        )
