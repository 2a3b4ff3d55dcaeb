"""Figures 2 and 6 of Bhardwaj et al. 2021: rank and nullity of T against text length, Con and Add."""

from collections.abc import Callable, Sequence

import polars as pl

from identilens.encoder.rank_lengths import rank_by_length
from identilens.models import Lens
from identilens.report.encoder_figures import rank_sheet
from identilens.reproduce.record import Reproduction
from identilens.results.stored import markdown_table

LENGTHS = tuple(range(16, 513, 16))

PUBLISHED = {
    "2": "Published: rank(T) = min(d_s, 64), so that the nullity grows linearly beyond d_s = 64.",
    "6": "Published: nullity 0 up to about d_s = 380.",
}


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
        {"ranks": ranks, "by_length": by_length}, findings, {"ranks": lambda: rank_sheet(ranks, d_v)}, seed,
    )  # fmt: skip


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
