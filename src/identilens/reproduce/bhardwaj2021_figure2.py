"""Figures 2 and 6 of Bhardwaj et al. 2021: rank and nullity of T against text length, Con and Add."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from annotated_types import Ge

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import rule, scatter
from identilens.encoder.rank_lengths import rank_by_length
from identilens.encoder.settings import HeadsName
from identilens.models.lens import Lens
from identilens.reproduce.bhardwaj2021_reviews import ReviewSettings, reviews, trained_encoder
from identilens.reproduce.record import Recipe, Reproduction
from identilens.runs.study import Progress
from identilens.runs.tables import markdown_table

LENGTHS = tuple(range(16, 513, 16))

PUBLISHED = {
    "2": "Published: rank(T) = min(d_s, 64), so that the nullity grows linearly beyond d_s = 64.",
    "6": "Published: nullity 0 up to about d_s = 380.",
}


@dataclass(frozen=True, kw_only=True)
class RankSettings(ReviewSettings):
    """The encoder, and how many reviews.

    Attributes:
        reviews: Reviews for each length.
    """

    reviews: Annotated[int, Ge(1)] = 100


def figure2(settings: RankSettings, out: Path, **run: Any) -> Reproduction:
    """Rank and nullity of T by text length in a Con encoder."""
    return _figure("2", "concat", settings, out, **run)


def figure6(settings: RankSettings, out: Path, **run: Any) -> Reproduction:
    """Rank and nullity of T by text length in an Add encoder."""
    return _figure("6", "add", settings, out, **run)


def rank_figure(
    figure: str,
    lens: Lens,
    texts: Sequence[str],
    *,
    lengths: Sequence[int] = LENGTHS,
    per_length: int = 100,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Reproduction:
    """Return Figure "2" (Con) or "6" (Add) for a trained encoder: its first head on reviews clipped to each length."""
    ranks = rank_by_length(lens, texts, lengths=lengths, per_length=per_length, seed=seed, progress=progress)
    by_length = ranks.group_by("seq_len").agg(
        pl.col("rank").min().alias("lowest rank"),
        pl.col("rank").mean().alias("mean rank"),
        pl.col("nullity").mean().alias("mean nullity"),
        pl.col("nullity").max().alias("highest nullity"),
        (pl.col("nullity") == 0).mean().alias("share identifiable"),
    )
    by_length, d_v = by_length.sort("seq_len"), int(ranks["d_v"][0])
    findings = f"{PUBLISHED[figure]} {_finding(ranks, d_v)}\n\n{markdown_table(by_length)}"
    settings = {
        "encoder": {name: getattr(lens.model.config, name) for name in ("heads", "d_k", "d_v", "hidden_size")},
        "weights (sha256)": lens.digest,
        "head": 0,
        "lengths": f"{min(lengths)} to {max(lengths)}, {len(lengths)} of them",
        "reviews a length": per_length,
    }
    return Reproduction(
        f"bhardwaj2021-figure{figure}", f"Bhardwaj et al. 2021, Figure {figure}", settings,
        {"ranks": ranks, "by_length": by_length}, findings, {"ranks": rank_chart(ranks, d_v)}, seed,
    )  # fmt: skip


def rank_chart(ranks: pl.DataFrame, bound: int) -> AnyChart:
    """Return rank(T) and dim LN(T) against text length, one dot a text (Bhardwaj et al. 2021, Fig. 2 and 6).

    Args:
        ranks: As from `rank_by_length`.
        bound: d_v, the largest rank that T can have.
    """
    long = ranks.select("seq_len", pl.col("rank").alias("rank(T)"), pl.col("nullity").alias("dim LN(T)"))
    drawn = long.unpivot(["rank(T)", "dim LN(T)"], index="seq_len", variable_name="of", value_name="dimension")
    chart = scatter(
        drawn, "seq_len", "dimension", "of", x_title="Tokens, d_s", y_title="Dimension", color_title="",
        title="Rank and nullity of T by text length",
    )  # fmt: skip
    return rule(chart, y=bound, label=f"d_v = {bound}")


def _figure(
    figure: str,
    heads: HeadsName,
    settings: RankSettings,
    out: Path,
    *,
    resume: bool,
    overwrite: bool,
    progress: Progress | None,
) -> Reproduction:
    lens = trained_encoder(settings, heads, out, resume=resume, overwrite=overwrite, progress=progress)
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
