"""The result of a token identifiability analysis: how many input tokens are recovered from which hidden states."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.kit import AnyChart
from identilens.charts.page import Section
from identilens.runs.result import Finding, Result
from identilens.studies.tokens import views
from identilens.studies.tokens.finding import finding
from identilens.studies.tokens.sections import EXPERIMENTS, sections

CELL = {
    "experiment": pl.String,
    "checkpoint": pl.Enum(["model", "compared"]),
    "probe": pl.Enum(["naive", "ridge", "linear", "mlp"]),
    "distance": pl.Enum(["cosine", "l2"]),
    "layer_trained": pl.Int64,
    "layer_tested": pl.Int64,
    "layer_target": pl.Int64,
    "offset": pl.Int64,
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
        ┌───────┬──────────┬───────┬─────┬──────────┐
        │ probe ┆ distance ┆ folds ┆ 1   ┆ 6        │
        │ ---   ┆ ---      ┆ ---   ┆ --- ┆ ---      │
        │ enum  ┆ enum     ┆ u32   ┆ f64 ┆ f64      │
        ╞═══════╪══════════╪═══════╪═════╪══════════╡
        │ naive ┆ cosine   ┆ 2     ┆ 1.0 ┆ 0.812816 │
        └───────┴──────────┴───────┴─────┴──────────┘
    """

    analysis: ClassVar = "tokens"
    title: ClassVar = "Token identifiability"
    schema: ClassVar = {
        "table": {
            **CELL,
            "fold": pl.Int64,
            "rate": pl.Float64,
            "token_rate": pl.Float64,
            "train_rate": pl.Float64,
            "chance": pl.Float64,
            "token_chance": pl.Float64,
            "validation_loss": pl.Float64,
            "tokens": pl.Int64,
            "sentences": pl.Int64,
            "train_tokens": pl.Int64,
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
            (100 * pl.col("rate")).round(2), pl.col("layer_tested").cast(pl.String)
        )
        return percent.pivot("layer_tested", index=index, values="rate")

    def summary(self) -> Finding:
        """Return how many tokens each probe recovers, and how many a guess would."""
        return finding(self.table, self.means())

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the rates by layer."""
        return {"Recovered (%) by layer, means over folds": self.by_layer()}

    def charts(self) -> dict[str, AnyChart]:
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
