"""What the table of perturbations says: which norm follows the change of the model's output."""

from typing import Any

import polars as pl

from identilens.runs.tables import Columns, table_of

PERTURBATIONS: Columns = {
    "text": pl.Int64, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64,
    "perturbation": pl.String, "draw": pl.Int64, "share": pl.Float64, "structure": pl.Float64,
    "structure_effective": pl.Float64, "one": pl.Float64, "infinity": pl.Float64, "frobenius": pl.Float64,
    "output": pl.Float64, "hidden": pl.Float64,
}  # fmt: skip
"""Perturbed weights put back into a model: their norms, and what they change."""

NORMS = ("structure", "structure_effective", "one", "infinity", "frobenius", "output")
"""Columns that are compared with ``hidden``, the change of the final hidden state."""

_HEAD = ["text", "kind", "layer", "head"]
_COLUMNS = (
    "within_spearman",
    "within_pearson",
    "same_size_spearman",
    "whole_spearman",
    "pooled_spearman",
    "pooled_pearson",
)


def norm_correlations(perturbations: pl.DataFrame) -> pl.DataFrame:
    """Return how well each norm follows the change of the final hidden state under perturbations.

    Args:
        perturbations: A table with the columns `PERTURBATIONS`.

    Returns:
        For each norm, correlations over the perturbations of one head and text (``within``), over those of one head,
        text and Frobenius norm (``same_size``; null where a norm does not tell them apart), both as means, and over all
        at once (``pooled``). These leave out moves taken as a whole, which are compared among themselves, within head
        and text (``whole``). ``output`` is the relative change of the head's own output, which no norm on weights alone
        can know.
    """
    schema = {"norm": pl.String, **dict.fromkeys(_COLUMNS, pl.Float64)}
    sized, whole = perturbations.drop_nulls("share"), perturbations.filter(pl.col("share").is_null())
    return table_of(schema, [_row(norm, sized, whole) for norm in NORMS] if len(perturbations) else [])


def _row(norm: str, sized: pl.DataFrame, whole: pl.DataFrame) -> dict[str, Any]:
    spearman = pl.corr(norm, "hidden", method="spearman").alias("spearman")
    pearson = pl.corr(norm, "hidden", method="pearson").alias("pearson")
    within = sized.group_by(_HEAD).agg(spearman, pearson).fill_nan(None)
    # Norms of one size differ by rounding, which ranks would take for differences.
    told = sized.with_columns(pl.col(norm).round_sig_figs(9))
    pooled = sized.select(spearman, pearson).row(0, named=True)
    return {
        "norm": norm,
        "within_spearman": within["spearman"].mean(),
        "within_pearson": within["pearson"].mean(),
        "same_size_spearman": told.group_by([*_HEAD, "share"]).agg(spearman).fill_nan(None)["spearman"].mean(),
        "whole_spearman": whole.group_by(_HEAD).agg(spearman).fill_nan(None)["spearman"].mean(),
        "pooled_spearman": pooled["spearman"],
        "pooled_pearson": pooled["pearson"],
    }


def by_perturbation(perturbations: pl.DataFrame) -> pl.DataFrame:
    """Return the mean norm and change of head output and final hidden state for each perturbation and size.

    Moves taken as a whole come last, with a share of null.
    """
    return (
        perturbations.group_by("perturbation", "share")
        .agg(pl.col("structure", "frobenius", "output", "hidden").mean(), pl.len().alias("count"))
        .sort("share", "perturbation", nulls_last=True)
    )
