"""The result of asking which alternatives a softmax over queries and keys could give."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.kit import AnyChart
from identilens.lab.encoder.logit_ranks import views
from identilens.runs.result import Finding, Result
from identilens.runs.tables import HEAD, percent


@dataclass(frozen=True, kw_only=True)
class LogitRanks(Result):
    """Least logit ranks of random alternatives (Bhardwaj et al. 2021, Fig. 5).

    Attributes:
        table: One row for each text and head.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> result = idl.lab.logit_ranks(lens, idl.examples()[1], layers=3, heads=(5, 6), count=10)
        >>> result.table.select("layer", "head", "d_k", "alternatives", "realisable_share")
        shape: (2, 5)
        ┌───────┬──────┬─────┬──────────────┬──────────────────┐
        │ layer ┆ head ┆ d_k ┆ alternatives ┆ realisable_share │
        │ ---   ┆ ---  ┆ --- ┆ ---          ┆ ---              │
        │ i64   ┆ i64  ┆ i64 ┆ i64          ┆ f64              │
        ╞═══════╪══════╪═════╪══════════════╪══════════════════╡
        │ 3     ┆ 5    ┆ 32  ┆ 10           ┆ 0.0              │
        │ 3     ┆ 6    ┆ 32  ┆ 10           ┆ 0.0              │
        └───────┴──────┴─────┴──────────────┴──────────────────┘
    """

    analysis: ClassVar = "lab encoder logit-ranks"
    title: ClassVar = "Logit ranks of alternatives"
    schema: ClassVar = {
        "table": {
            **HEAD, "n_key": pl.Int64, "d_k": pl.Int64, "d_v": pl.Int64, "simplex_nullity": pl.Int64,
            "original_rank": pl.Int64, "lowest_rank": pl.Int64, "mean_rank": pl.Float64, "highest_rank": pl.Int64,
            "realisable_share": pl.Float64, "alternatives": pl.Int64, "mean_total_variation": pl.Float64,
            "output_error": pl.Float64,
        }
    }  # fmt: skip

    def summary(self) -> Finding:
        """Return the finding: how many alternatives queries and keys could give, and how high ranks are."""
        drawn = int(self.table["alternatives"].sum())
        numbers = self.table.select(
            realisable=(pl.col("realisable_share") * pl.col("alternatives")).sum() / drawn,
            rank_share=(pl.col("mean_rank") / (pl.col("n_key") - 1)).mean(),
        ).row(0, named=True)
        within, share = percent(numbers["realisable"]), percent(numbers["rank_share"])
        text = (
            f"{within} of {drawn:,} random alternatives of {len(self.table)} attention maps have logits of rank at "
            f"most d_k, so that queries and keys could give them. Their mean rank is {share} of the largest there is, "
            "the number of keys less one."
        )
        headline = ((within, "of the alternatives have logits of rank at most d_k"), (share, "mean share of full rank"))
        return Finding(text, {"alternatives": drawn, **numbers}, headline)

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return the means by layer."""
        measures = [name for name in self.schema["table"] if name not in HEAD]
        return {"Means by layer": self.table.group_by("kind", "layer").agg(pl.col(measures).mean()).sort("layer")}

    def charts(self) -> dict[str, AnyChart]:
        """Return ``logit_rank_by_length``: least logit ranks against the number of keys."""
        return {"logit_rank_by_length": views.rank_by_length(self.table)}
