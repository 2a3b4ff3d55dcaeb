"""The result of training Dyck transformers: how well each seed does, what its attention looks like and does."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from identilens.results.stored import load_run, print_table, save_run

ANALYSIS = "dyck"

RUN_COLUMNS: dict[str, Any] = {
    "setting": pl.String,
    "types": pl.Int64,
    "depth": pl.Int64,
    "layers": pl.Int64,
    "heads": pl.Int64,
    "block": pl.String,
    "first_layer": pl.String,
    "positions": pl.String,
    "data": pl.String,
    "learning_rate": pl.Float64,
    "weight_decay": pl.Float64,
    "contrast": pl.Float64,
    "epochs": pl.Int64,
    "seed": pl.Int64,
    "loss": pl.Float64,
    "argmax": pl.Float64,
    "threshold": pl.Float64,
    "long_argmax": pl.Float64,
    "long_threshold": pl.Float64,
    "violation": pl.Float64,
    "largest_violation": pl.Float64,
    "condition": pl.Float64,
}
"""Columns of the table: one row a setting and seed."""

CURVE_COLUMNS: dict[str, Any] = {"setting": pl.String, "seed": pl.Int64, "epoch": pl.Int64, "loss": pl.Float64}
"""Columns of the training losses: one row a setting, seed and epoch."""

HEAD_COLUMNS: dict[str, Any] = {
    "setting": pl.String,
    "seed": pl.Int64,
    "layer": pl.Int64,
    "head": pl.Int64,
    "stack_weight": pl.Float64,
    "stack_first": pl.Float64,
    "even_weight": pl.Float64,
    "accuracy": pl.Float64,
    "removed": pl.Float64,
    "even": pl.Float64,
    "random": pl.Float64,
    "largest_fall": pl.Float64,
    "looks": pl.Boolean,
    "used": pl.Boolean,
}
"""Columns of the table of heads: accuracy by argmax as it is, and with the head's attention changed."""

PATTERN_COLUMNS: dict[str, Any] = {
    "setting": pl.String,
    "seed": pl.Int64,
    "layer": pl.Int64,
    "head": pl.Int64,
    "size": pl.Int64,
    "tokens": pl.List(pl.String),
    "weights": pl.List(pl.Float32),
}
"""Columns of the attention patterns on the probe prefix, row after row in ``weights``."""

VARIATION_COLUMNS: dict[str, Any] = {
    "setting": pl.String,
    "layer": pl.Int64,
    "head": pl.Int64,
    "with_start": pl.Boolean,
    "size": pl.Int64,
    "seeds": pl.Int64,
    "value": pl.Float64,
    "error": pl.Float64,
    "even_on_simplex": pl.Float64,
    "softmax_of_normals": pl.Float64,
}
"""Columns of the attention variation: one row a setting, layer, head and convention, random baselines beside it."""

TABLES = {
    "table": RUN_COLUMNS,
    "curves": CURVE_COLUMNS,
    "heads": HEAD_COLUMNS,
    "patterns": PATTERN_COLUMNS,
    "variation": VARIATION_COLUMNS,
}


@dataclass(frozen=True)
class DyckRuns:
    """Dyck transformers trained from several seeds in several settings (Wen et al. 2023, section 4, B.1, D).

    Attributes:
        table: One row a setting and seed; columns as in `RUN_COLUMNS`.
        curves: Training losses; columns as in `CURVE_COLUMNS`.
        heads: How stack-like each head looks and what changing it does; columns as in `HEAD_COLUMNS`.
        patterns: Attention on the probe prefix; columns as in `PATTERN_COLUMNS`.
        variation: Attention variation over seeds; columns as in `VARIATION_COLUMNS`.
        provenance: What made it.
    """

    table: pl.DataFrame
    curves: pl.DataFrame
    heads: pl.DataFrame
    patterns: pl.DataFrame
    variation: pl.DataFrame
    provenance: dict[str, Any]

    @property
    def settings(self) -> list[str]:
        """Names of the settings, in order."""
        return self.table["setting"].unique(maintain_order=True).to_list()

    def means(self) -> pl.DataFrame:
        """Return each measure's mean and standard error over the seeds of a setting."""
        measures = ["loss", "argmax", "threshold", "long_argmax", "long_threshold", "violation"]
        return self.table.group_by("setting", maintain_order=True).agg(
            pl.len().alias("seeds"),
            *(pl.col(name).mean() for name in measures),
            *((pl.col(name).std() / pl.len().sqrt()).alias(f"{name}_error") for name in measures),
            pl.col("argmax").min().alias("argmax_least"),
        )

    def misleading(self) -> pl.DataFrame:
        """Return, for each setting and layer, how many heads look like a stack or not, and are used or not."""
        counts = {
            "misleading": pl.col("looks") & ~pl.col("used"),
            "stack_and_used": pl.col("looks") & pl.col("used"),
            "used_unlike_a_stack": ~pl.col("looks") & pl.col("used"),
            "neither": ~pl.col("looks") & ~pl.col("used"),
        }
        return self.heads.group_by("setting", "layer", maintain_order=True).agg(
            pl.len().alias("heads"),
            pl.col("stack_weight", "largest_fall").mean(),
            *(condition.sum().alias(name) for name, condition in counts.items()),
        )

    def summary(self) -> str:
        """Return the finding in a few sentences."""
        return "\n".join(self._sentences())

    def show(self) -> None:
        """Print the finding and the means."""
        Console().print(self.summary())
        shown = ["setting", "seeds", "argmax", "threshold", "long_argmax", "long_threshold", "violation"]
        print_table("Accuracy in distribution and on long prefixes, means over seeds", self.means().select(shown))
        names = {"even_on_simplex": "random rows", "softmax_of_normals": "random logits"}
        rows = self.variation.filter(~pl.col("with_start")).drop("with_start").rename(names)
        print_table("Attention variation, start token left out", rows)

    def save(self, folder: str | Path) -> None:
        """Write the result as a folder that `load` reads.

        Raises:
            OutputFolderError: If the folder holds another run, or cannot be written.
        """
        save_run(folder, self.provenance, {name: getattr(self, name) for name in TABLES})

    @classmethod
    def load(cls, folder: str | Path) -> "DyckRuns":
        """Return the result that a folder holds.

        Raises:
            OutputFolderError: If the folder holds no finished run of this kind.
        """
        return cls.of(*load_run(folder, ANALYSIS, TABLES))

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame], record: dict[str, Any]) -> "DyckRuns":
        """Return the result whose tables have these names."""
        return cls(tables["table"], tables["curves"], tables["heads"], tables["patterns"], tables["variation"], record)

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML file and return its path."""
        from identilens.report import write_dyck_report

        return write_dyck_report(self, Path(path))

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary())}</p>{self.means()._repr_html_()}"

    def _sentences(self) -> Iterator[str]:
        for row in self.means().iter_rows(named=True):
            line = (
                f"{row['setting']}: {row['seeds']} {'seed' if row['seeds'] == 1 else 'seeds'}, "
                f"{100 * row['argmax']:.1f} % of the closing brackets right in distribution (least "
                f"{100 * row['argmax_least']:.1f} %), {100 * row['long_argmax']:.1f} % on long prefixes"
            )
            own = self.variation.filter((pl.col("setting") == row["setting"]) & ~pl.col("with_start"))
            if len(own):
                last = own.sort("layer", "head")[-1].row(0, named=True)
                line += (
                    f"; attention of the last layer varies by {last['value']:.2f} between seeds, random rows by "
                    f"{last['even_on_simplex']:.2f}"
                )
            yield line + "."
        looking, unused = self.heads.filter(pl.col("looks")), self.heads.filter(pl.col("looks") & ~pl.col("used"))
        yield (
            f"{len(looking)} of {len(self.heads)} heads look like a stack; for {len(unused)} of these any other "
            "attention gives the same predictions to a point of accuracy."
        )
