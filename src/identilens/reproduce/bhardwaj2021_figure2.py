"""Figures 2 and 6 of Bhardwaj et al. 2021: rank and nullity of T against text length, Con and Add."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from annotated_types import Ge

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import rule, scatter
from identilens.lab.encoder.rank_lengths import rank_by_length
from identilens.lab.encoder.settings import HeadsName
from identilens.models.lens import Lens
from identilens.reproduce.bhardwaj2021_reviews import ReviewSettings, encoder_facts, reviews, trained_encoder
from identilens.reproduce.record import Recipe, Reproduction
from identilens.runs.progress import Progress
from identilens.runs.tables import markdown_table

LENGTHS = tuple(range(16, 513, 16))

PUBLISHED = {
    "2": "Published: rank(T) = min(d_s, 64), so that the nullity grows linearly beyond d_s = 64.",
    "6": "Published: nullity 0 up to about d_s = 380.",
}


@dataclass(frozen=True, kw_only=True)
class RankSettings(ReviewSettings):
    """The encoder, and the number of reviews.

    Attributes:
        reviews: Number of reviews for each length.
    """

    reviews: Annotated[int, Ge(1)] = 100


def figure2(settings: RankSettings, out: Path, **run: Any) -> Reproduction:
    """Rank and nullity of T by text length in a Con encoder."""
    return _figure("2", "concat", settings, out, **run)


def figure6(settings: RankSettings, out: Path, **run: Any) -> Reproduction:
    """Rank and nullity of T by text length in an Add encoder."""
    return _figure("6", "add", settings, out, **run)


def rank_figure(
    figure: str, lens: Lens, texts: Sequence[str], *, lengths: Sequence[int] = LENGTHS, per_length: int = 100,
    seed: int = 0, progress: Callable[[int, int], None] | None = None,
) -> Reproduction:  # fmt: skip
    """Return Figure "2" (Con) or "6" (Add) for a trained encoder: its first head on reviews clipped to each length."""
    ranks = rank_by_length(lens, texts, lengths=lengths, per_length=per_length, seed=seed, progress=progress)
    rank, nullity, d_v = pl.col("rank"), pl.col("nullity"), int(ranks["d_v"][0])
    by_length = ranks.group_by("seq_len").agg(
        rank.min().alias("lowest rank"), rank.mean().alias("mean rank"), nullity.mean().alias("mean nullity"),
        nullity.max().alias("highest nullity"), (nullity == 0).mean().alias("share identifiable"),
    ).sort("seq_len")  # fmt: skip
    findings = f"{PUBLISHED[figure]} {_finding(ranks, d_v)}\n\n{markdown_table(by_length)}"
    settings = {
        **encoder_facts(lens), "head": 0, "lengths": f"{min(lengths)} to {max(lengths)}, {len(lengths)} of them",
        "reviews per length": per_length,
    }  # fmt: skip
    return Reproduction(
        f"bhardwaj2021-figure{figure}", f"Bhardwaj et al. 2021, Figure {figure}", settings,
        {"ranks": ranks, "by_length": by_length}, findings, {"ranks": rank_chart(ranks, d_v)}, seed,
    )  # fmt: skip


def rank_chart(ranks: pl.DataFrame, bound: int) -> AnyChart:
    """Return rank(T) and dim LN(T) by text length: a dot per text, a line at d_v (Bhardwaj et al. 2021, Fig. 2, 6)."""
    long = ranks.select("seq_len", pl.col("rank").alias("rank(T)"), pl.col("nullity").alias("dim LN(T)"))
    drawn = long.unpivot(["rank(T)", "dim LN(T)"], index="seq_len", variable_name="of", value_name="dimension")
    chart = scatter(
        drawn, "seq_len", "dimension", "of", x_title="Tokens, d_s", y_title="Dimension", color_title="",
        title="Rank and nullity of T by text length",
    )  # fmt: skip
    return rule(chart, y=bound, label=f"d_v = {bound}")


def _figure(
    figure: str, heads: HeadsName, settings: RankSettings, out: Path, *, progress: Progress | None, **run: bool
) -> Reproduction:
    lens = trained_encoder(settings, heads, out, progress=progress, **run)
    counted = None if progress is None else lambda done, total: progress(done, total, "lengths")
    return rank_figure(
        figure, lens, reviews(settings.data), per_length=settings.reviews, seed=settings.seed, progress=counted
    )


def _finding(ranks: pl.DataFrame, d_v: int) -> str:
    full = ranks.filter(pl.col("nullity") == (pl.col("seq_len") - d_v).clip(0))
    whole = ranks.group_by("seq_len").agg((pl.col("nullity") == 0).all().alias("all")).sort("seq_len")
    lost = whole.filter(~pl.col("all"))["seq_len"]
    shorter = whole if lost.is_empty() else whole.filter(pl.col("seq_len") < lost.min())
    reach = f"nullity 0 in every review up to d_s = {shorter['seq_len'].max()}" if len(shorter) else "never nullity 0"
    return (
        f"Measured: rank(T) = min(d_s, {d_v}) in {len(full):,} of {len(ranks):,} reviews, {reach}; "
        f"nullity at most {ranks['nullity'].max()}."
    )


FIGURE2 = Recipe(RankSettings, figure2)
FIGURE6 = Recipe(RankSettings, figure6)
