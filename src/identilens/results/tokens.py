"""The result of a token identifiability analysis: how many input tokens are recovered from which hidden states."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from identilens.results.stored import load_run, percent, print_table, save_run

ANALYSIS = "tokens"

RATE_COLUMNS: dict[str, Any] = {
    "experiment": pl.String,
    "checkpoint": pl.Enum(["model", "compared"]),
    "probe": pl.Enum(["naive", "ridge", "linear", "mlp"]),
    "distance": pl.Enum(["cosine", "l2"]),
    "layer_trained": pl.Int64,
    "layer_tested": pl.Int64,
    "layer_target": pl.Int64,
    "offset": pl.Int64,
    "share": pl.Float64,
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
"""Columns of the table: one row for each checkpoint, probe, distance, cell of the experiment, and fold."""

CELL = (
    "experiment",
    "checkpoint",
    "probe",
    "distance",
    "layer_trained",
    "layer_tested",
    "layer_target",
    "offset",
    "share",
)
"""What a mean over folds is taken within."""

PROBE_NAMES = {"naive": "naive look-up", "linear": "linear probe", "mlp": "MLP", "ridge": "ridge probe"}
DISTANCE_NAMES = {"cosine": "cosine", "l2": "L2"}


@dataclass(frozen=True)
class TokenIdentifiability:
    """Every number of a token identifiability analysis (Brunner et al. 2020, section 4, appendices B and D.1).

    Attributes:
        table: One row for each cell and fold; columns as in `RATE_COLUMNS`.
        provenance: What made it.
    """

    table: pl.DataFrame
    provenance: dict[str, Any]

    @property
    def experiment(self) -> str:
        """Name of the experiment."""
        return self.table["experiment"][0]

    def means(self) -> pl.DataFrame:
        """Return the mean of each measure over folds, with its standard error, one row a cell.

        Columns: those of the cell, folds, rate, rate_error, token_rate, train_rate, chance, token_chance,
        validation_loss, tokens, sentences (tested, summed over folds), learning_rate (smallest and largest),
        epochs (most) and converged (share). The standard error is the folds' standard deviation over the root of their
        number, null for one fold. Folds share sentences, so it says how much the split matters, not how
        much another corpus would.
        """
        return (
            self.table.group_by(CELL, maintain_order=True)
            .agg(
                pl.len().alias("folds"),
                pl.col("rate").mean(),
                (pl.col("rate").std() / pl.len().sqrt()).alias("rate_error"),
                pl.col("token_rate", "train_rate", "chance", "token_chance", "validation_loss").mean(),
                pl.col("tokens", "sentences").sum(),
                pl.col("learning_rate").min().alias("lowest_learning_rate"),
                pl.col("learning_rate").max().alias("highest_learning_rate"),
                pl.col("epochs").max(),
                pl.col("converged").mean(),
            )
            .sort(CELL, maintain_order=True)
        )

    def same_layer(self) -> pl.DataFrame:
        """Return the means of the cells that are tested on the layer they were trained on."""
        return self.means().filter(pl.col("layer_trained") == pl.col("layer_tested"))

    def summary(self) -> str:
        """Return the finding in a few sentences."""
        return "\n".join(self._sentences())

    def by_layer(self) -> pl.DataFrame:
        """Return the rates in per cent, means over folds, with a column for each layer tested.

        What differs within the result (checkpoint, layer trained on, offset, share) has columns of its own.
        """
        means = self.means()
        own = [name for name in ("layer_trained", "offset", "share") if self._tells_apart(name)]
        index = ["probe", "distance", *(["checkpoint"] if means["checkpoint"].n_unique() > 1 else []), *own, "folds"]
        percent = means.with_columns(
            (100 * pl.col("rate")).round(2).alias("rate"), pl.col("layer_tested").cast(pl.String)
        )
        return percent.pivot("layer_tested", index=index, values="rate")

    def show(self) -> None:
        """Print the finding and the rates by layer."""
        Console().print(self.summary())
        print_table("Recovered (%) by layer, means over folds", self.by_layer())

    def save(self, folder: str | Path) -> None:
        """Write the result as a folder that `load` reads.

        Raises:
            OutputFolderError: If the folder holds another run, or cannot be written.
        """
        save_run(folder, self.provenance, {"table": self.table})

    @classmethod
    def load(cls, folder: str | Path) -> "TokenIdentifiability":
        """Return the result that a folder holds.

        Raises:
            OutputFolderError: If the folder holds no finished run of this kind.
        """
        tables, record = load_run(folder, ANALYSIS)
        return cls(tables["table"].cast(pl.Schema(RATE_COLUMNS)), record)

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML file and return its path."""
        from identilens.report import write_tokens_report

        return write_tokens_report(self, Path(path))

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary())}</p>{self.means()._repr_html_()}"

    def _tells_apart(self, name: str) -> bool:
        """Return whether a column of the cell differs between rows that are tested on one layer."""
        return self.table.group_by("layer_tested").agg(pl.col(name).n_unique())[name].max() != 1

    def _sentences(self) -> Iterator[str]:
        means = self.means()
        keys = ["checkpoint", "probe", "distance"]
        compared, folds = means["checkpoint"].n_unique() > 1, self.table["fold"].n_unique()
        for (checkpoint, probe, distance), rows in means.group_by(keys, maintain_order=True):
            name = f"{PROBE_NAMES[str(probe)]}, {DISTANCE_NAMES[str(distance)]}"
            name = f"{name} ({checkpoint})" if compared else name
            if rows["folds"][0] < folds:
                name += f" (on {rows['folds'][0]} of {folds} folds)"
            yield f"{name[0].upper()}{name[1:]}: {self._finding(rows)}."
        chance = means["chance"].mean()
        tested = self.table.group_by("fold").agg(pl.col("tokens").max(), pl.col("sentences").max())
        yield (
            f"Chance: {percent(chance)}. {folds} {'fold' if folds == 1 else 'folds'}, about "
            f"{tested['tokens'].mean():,.0f} test tokens in {tested['sentences'].mean():,.0f} sentences each."
        )

    def _finding(self, rows: pl.DataFrame) -> str:
        """Return what the rows of one probe and distance say."""
        first, last = rows["layer_trained"].min(), rows["layer_trained"].max()

        def rate(**where: Any) -> str:
            found = rows.filter(*(pl.col(name) == value for name, value in where.items()))
            return percent(found["rate"].mean())

        if self.experiment == "neighbours":
            sides = [f"{rate(offset=offset)} at {offset:+d}" for offset in sorted(rows["offset"].unique())]
            return f"neighbours recovered, mean over layers: {', '.join(sides)}"
        if self.experiment == "data-share":
            shares = [f"{rate(share=share)} with {100 * share:.0f} %" for share in sorted(rows["share"].unique())]
            return f"recovered at layer {last}: {', '.join(shares)} of the training sentences"
        if self.experiment == "layer-to-layer":
            rates = rows["rate"].to_list()
            return f"from each layer to the one below, {percent(min(rates))} to {percent(max(rates))} are recovered"
        own = f"{rate(layer_trained=first, layer_tested=first)} of the tokens recovered at layer {first}"
        if last != first:
            own += f", {rate(layer_trained=last, layer_tested=last)} at layer {last}"
        if self.experiment == "across-layers" and len(rows) > rows["layer_trained"].n_unique():
            low, high = rows["layer_tested"].min(), rows["layer_tested"].max()
            own += f"; trained on {first}, tested on {high}: {rate(layer_trained=first, layer_tested=high)}"
            own += f"; trained on {last}, tested on {low}: {rate(layer_trained=last, layer_tested=low)}"
        return own
