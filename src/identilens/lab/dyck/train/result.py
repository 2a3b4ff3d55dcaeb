"""The result of training Dyck transformers: how well each seed does, what its attention looks like and does."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.kit import Charts
from identilens.charts.labels import file_names
from identilens.charts.page import Section
from identilens.lab.dyck.train import views
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Tables, counted, decimals, integers, percent

_MODEL = {"setting": pl.String, "seed": pl.Int64}
_HEAD = {**_MODEL, "layer": pl.Int64, "head": pl.Int64}


@dataclass(frozen=True, kw_only=True)
class DyckRuns(Result):
    """Dyck transformers trained from several seeds in several settings (Wen et al. 2023, section 4, B.1, D).

    Attributes:
        table: One row a setting and seed: what it is, losses, accuracies, balance violation.
        curves: Training losses: one row a setting, seed and epoch.
        heads: How stack-like each head looks, and accuracy by argmax with its attention changed.
        patterns: Attention on the probe prefix, row after row in ``weights``.
        variation: Attention variation over seeds by setting, layer, head and convention, random baselines beside it.

    Examples:
        >>> import identilens as idl
        >>> runs = idl.lab.train_dyck(
        ...     seeds=(0, 1), length=8, depth=2, hidden=8, tokens=400, epochs=2, batch_size=25,
        ...     sequences=10, long_sequences=2, lengths=(20, 24), head_sequences=5, draws=1,
        ... )
        >>> runs.settings, len(runs.heads)
        (['2 types, depth 2, 2 layers'], 4)
        >>> runs.variation.columns
        ['setting', 'layer', 'head', 'with_start', 'size', 'seeds', 'value', 'error', 'even_on_simplex',
        'softmax_of_normals']
    """

    analysis: ClassVar = "lab dyck train"
    title: ClassVar = "Dyck transformers"
    schema: ClassVar = {
        "table": {
            "setting": pl.String,
            **integers("types", "depth", "layers", "heads"),
            "block": pl.String,
            "first_layer": pl.String,
            "positions": pl.String,
            "data": pl.String,
            **decimals("learning_rate", "weight_decay", "contrast"),
            "epochs": pl.Int64,
            "seed": pl.Int64,
            **decimals(
                "loss",
                "argmax",
                "threshold",
                "long_argmax",
                "long_threshold",
                "violation",
                "largest_violation",
                "condition",
            ),
        },
        "curves": {**_MODEL, "epoch": pl.Int64, "loss": pl.Float64},
        "heads": {
            **_HEAD,
            **decimals(
                "stack_weight",
                "stack_first",
                "even_weight",
                "accuracy",
                "removed",
                "even",
                "random",
                "largest_fall",
            ),
            "looks": pl.Boolean,
            "used": pl.Boolean,
        },
        "patterns": {
            **_HEAD,
            "size": pl.Int64,
            "tokens": pl.List(pl.String),
            "weights": pl.List(pl.Float32),
        },
        "variation": {
            "setting": pl.String,
            "layer": pl.Int64,
            "head": pl.Int64,
            "with_start": pl.Boolean,
            "size": pl.Int64,
            "seeds": pl.Int64,
            **decimals("value", "error", "even_on_simplex", "softmax_of_normals"),
        },
    }

    curves: pl.DataFrame
    heads: pl.DataFrame
    patterns: pl.DataFrame
    variation: pl.DataFrame

    @property
    def settings(self) -> list[str]:
        """Names of the settings, in order."""
        return self.table["setting"].unique(maintain_order=True).to_list()

    def means(self) -> pl.DataFrame:
        """Return each measure's mean and standard error over the seeds of a setting."""
        measures = pl.col(
            "loss", "argmax", "threshold", "long_argmax", "long_threshold", "violation"
        )
        errors = (measures.std() / pl.len().sqrt()).name.suffix("_error")
        return self.table.group_by("setting", maintain_order=True).agg(
            pl.len().alias("seeds"), measures.mean(), errors, argmax_least=pl.col("argmax").min()
        )

    def misleading(self) -> pl.DataFrame:
        """Return, for each setting and layer, how many heads look like a stack or not, and are used or not."""
        looks, used = pl.col("looks"), pl.col("used")
        return self.heads.group_by("setting", "layer", maintain_order=True).agg(
            pl.len().alias("heads"),
            pl.col("stack_weight", "largest_fall").mean(),
            misleading=(looks & ~used).sum(),
            stack_and_used=(looks & used).sum(),
            used_unlike_a_stack=(~looks & used).sum(),
            neither=(~looks & ~used).sum(),
        )

    def subject(self) -> str:
        """Return the numbers of settings and seeds."""
        settings, seeds = len(self.settings), self.table["seed"].n_unique()
        return f"{counted(settings, 'setting')}, {counted(seeds, 'seed')} each"

    def summary(self) -> Finding:
        """Return the finding: accuracy and variation of each setting, and heads that look like a stack."""
        means = self.means()
        lines = []
        for row in means.iter_rows(named=True):
            line = (
                f"{row['setting']}: {row['seeds']} {'seed' if row['seeds'] == 1 else 'seeds'}, "
                f"{100 * row['argmax']:.1f} % of the closing brackets right in distribution (least "
                f"{100 * row['argmax_least']:.1f} %), {100 * row['long_argmax']:.1f} % on long prefixes"
            )
            of_setting = self.variation.filter(
                (pl.col("setting") == row["setting"]) & ~pl.col("with_start")
            )
            if len(of_setting):
                last = of_setting.sort("layer", "head")[-1].row(0, named=True)
                line += (
                    f"; attention of the last layer varies by {last['value']:.2f} between seeds, random rows by "
                    f"{last['even_on_simplex']:.2f}"
                )
            lines.append(line + ".")
        used = self.heads.filter("looks")["used"]
        lines.append(
            f"{len(used)} of {len(self.heads)} heads look like a stack; for {(~used).sum()} of these accuracy "
            "falls by at most one percentage point when the head is removed, or its attention made uniform or random."
        )
        unused = int((~used).sum())
        numbers = {"argmax": means["argmax"].min(), "long_argmax": means["long_argmax"].max()}
        numbers |= {"models": len(self.table), "misleading": unused}
        headline = (
            (
                percent(numbers["argmax"]),
                "of the closing brackets right in distribution, least mean of a setting",
            ),
            (percent(numbers["long_argmax"]), "right on long prefixes, best mean of a setting"),
            (str(len(self.table)), "models trained"),
            (f"{unused} of {len(self.heads)}", "heads look like a stack and are not used"),
        )
        return Finding("\n".join(lines), numbers, headline)  # pyright: ignore[reportArgumentType] numbers

    def overview(self) -> Tables:
        """Return accuracies and variation."""
        shown = [
            "setting",
            "seeds",
            "argmax",
            "threshold",
            "long_argmax",
            "long_threshold",
            "violation",
        ]
        names = {"even_on_simplex": "random rows", "softmax_of_normals": "random logits"}
        variation = self.variation.filter(~pl.col("with_start")).drop("with_start").rename(names)
        return {
            "Accuracy in distribution and on long prefixes, means over seeds": self.means().select(
                shown
            ),
            "Attention variation, start token left out": variation,
        }

    def charts(self) -> Charts:
        """Return the charts by name.

        ``gallery_<setting>`` (Wen et al. 2023, Fig. 1, 2, 7 to 9, 11), ``variation``, ``generalisation``,
        ``looks_and_use`` (Fig. 4 to 6), ``curves`` and, behind a minimal first layer, ``violation`` (Fig. 3, 10).
        """
        charts: Charts = {
            f"gallery_{file}": views.gallery(self.patterns.filter(setting=name), name)
            for name, file in file_names(self.settings).items()
        }
        if len(self.variation):
            charts["variation"] = views.variation(self.variation)
        charts["generalisation"] = views.generalisation(self.table)
        charts["looks_and_use"] = views.looks_and_use(self.heads)
        balanced = self.table.filter(pl.col("violation").is_not_null())
        if len(balanced):
            charts |= {
                f"violation_{name}": views.violation(balanced, name)
                for name in ("long_argmax", "long_threshold")
            }
        curves = self.curves.filter(pl.col("loss").is_not_nan())
        return charts | ({"curves": views.curves(curves)} if len(curves) else {})

    def sections(self) -> list[Section]:
        """Return the sections of the report."""
        return views.sections(
            self.patterns,
            self.means(),
            self.variation,
            self.misleading(),
            list(self.charts()),
            self.provenance["settings"].get("lengths"),
        )
