"""The result of pruning random transformers: how near they come to their targets, and what two of them share."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.lab.dyck.prune import views
from identilens.runs.result import Finding, Result


@dataclass(frozen=True, kw_only=True)
class Prunings(Result):
    """Pruned random transformers (Wen et al. 2023, Theorem 3 and Corollary 3).

    Attributes:
        table: One row a number of candidates and a random transformer. ``sampled_error`` is the largest error of a
            token over random inputs, ``error`` the largest that gradient ascent found: both are lower bounds of
            the largest over all inputs. ``other_sampled_error`` and ``other_error`` are those of a second target
            pruned from the same random weights; ``shared`` says that both prunings coincide on every weight of
            ``shared_layer``, ``apart`` how far the two functions lie apart at least (by ascent), ``pruning`` that
            every weight kept is the random one.

    Examples:
        >>> import identilens as idl
        >>> pruned = idl.lab.prune_dyck(candidates=(4, 6), seeds=1, inputs=50, starts=2, steps=2)
        >>> pruned.by_width().columns
        ['width', 'candidates', 'mean', 'largest', 'sampled', 'count']
    """

    analysis: ClassVar = "lab dyck prune"
    title: ClassVar = "Pruned random transformers"
    schema: ClassVar = {
        "table": {
            "candidates": pl.Int64, "seed": pl.Int64, "layers": pl.Int64, "embedding": pl.Int64, "key_size": pl.Int64,
            "width": pl.Int64, "weights": pl.Int64, "kept": pl.Int64, "sampled_error": pl.Float64, "error": pl.Float64,
            "other_sampled_error": pl.Float64, "other_error": pl.Float64, "apart": pl.Float64,
            "shared_layer": pl.Int64, "shared": pl.Boolean, "pruning": pl.Boolean,
        }
    }  # fmt: skip
    keys: ClassVar = {"table": ("candidates", "seed")}

    def subject(self) -> str:
        """Return the target."""
        settings = self.provenance["settings"]
        return (
            f"A target of {settings['layers']} {'layer' if settings['layers'] == 1 else 'layers'}, embedding size "
            f"{settings['size']}, feed-forward width {settings['width']}, inside random transformers four times as deep"
        )

    def summary(self) -> Finding:
        """Return the finding: errors at the widest and the narrowest, and how many pairs share a layer."""
        ends = self.by_width()
        first, last = ends.row(0, named=True), ends.row(-1, named=True)
        shared = self.table.filter(pl.col("shared") & pl.col("pruning"))
        apart = self.table.select(pl.col("apart").min()).item()
        settings = self.provenance["settings"]
        text = (
            f"With {last['candidates']} random products for each weight (width {last['width']}) the pruned "
            f"transformer is at most {last['sampled']:.2g} from its target on {settings['inputs']:,} random inputs, "
            f"over {last['count']} random transformers; with {first['candidates']} (width {first['width']}) "
            f"{first['sampled']:.2g}.\n"
            f"Gradient ascent in the unit ball finds inputs where it is {last['largest']:.2g} away, and "
            f"{first['largest']:.2g}. The largest error over all inputs is at least that.\n"
            f"In {len(shared)} of {len(self.table)} pairs the prunings for two targets agree on every weight of layer "
            f"{settings['shared_layer']}, while the targets lie at least {apart:.2g} apart: the weights of one layer "
            "alone do not tell what a transformer computes."
        )
        headline = (
            (f"{last['largest']:.2g}", f"largest error found at width {last['width']}, a lower bound"),
            (f"{len(shared)} of {len(self.table)}", "pairs with every weight of one layer in common"),
        )
        numbers = {
            "largest_error": last["largest"],
            "sampled_error": last["sampled"],
            "shared": len(shared),
            "apart": apart,
        }
        return Finding(text, numbers, headline)

    def by_width(self) -> pl.DataFrame:
        """Return mean and largest error of each width, the narrowest first, and the largest over random inputs."""
        error, sampled = pl.col("error"), pl.col("sampled_error").max()
        groups = self.table.group_by("width", "candidates")
        return groups.agg(mean=error.mean(), largest=error.max(), sampled=sampled, count=pl.len()).sort("width")

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return errors, and the sizes of the random transformers."""
        sizes = ["candidates", "layers", "embedding", "key_size", "width", "weights"]
        return {
            "Error of pruned random transformers": self.table.drop(sizes[1:]),
            "Sizes of the random transformers": self.table.select(sizes).unique(maintain_order=True),
        }

    def charts(self) -> dict[str, AnyChart]:
        """Return ``error_by_width``."""
        return {"error_by_width": views.error_by_width(self.by_width())}
