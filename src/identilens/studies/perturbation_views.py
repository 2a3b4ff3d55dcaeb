"""What perturbed weights say: which norm follows the change of the model's output, as tables and charts."""

from typing import Literal

import polars as pl

from identilens.charts.kit import Charts, bars, lines
from identilens.runs.tables import Columns, decimals

PERTURBATIONS: Columns = {
    "text": pl.Int64,
    "kind": pl.String,
    "layer": pl.Int64,
    "head": pl.Int64,
    "perturbation": pl.String,
    "draw": pl.Int64,
    **decimals(
        "share",
        "structure",
        "structure_effective",
        "one",
        "infinity",
        "frobenius",
        "output",
        "hidden",
    ),
}
"""Perturbed weights put back into a model: their norms, and what they change."""

NORM_NAMES = {
    "structure": "‖·‖_S",
    "structure_effective": "‖·‖_S, effective",
    "one": "1-norm",
    "infinity": "∞-norm",
    "frobenius": "Frobenius",
    "output": "head’s output",
}
NORMS = tuple(NORM_NAMES)
"""Columns that are compared with ``hidden``, the change of the final hidden state."""

_HEAD = ("text", "kind", "layer", "head")
_FOLLOWS = {"within_spearman": "within heads", "pooled_spearman": "pooled"}


def norm_correlations(perturbations: pl.DataFrame) -> pl.DataFrame:
    """Return how well each norm follows the change of the final hidden state under perturbations.

    For each norm, correlations over the perturbations of one head and text (``within``), over those of one head, text
    and Frobenius norm (``same_size``; null where a norm does not tell them apart), both as means, and over all at once
    (``pooled``). These leave out moves taken as a whole, which are compared among themselves, within head and text
    (``whole``). ``output`` is the relative change of the head's own output, which no norm on weights alone can know.
    """
    sized = perturbations.drop_nulls("share")
    whole = perturbations.filter(pl.col("share").is_null())
    # Norms of one size differ by rounding, which ranks would take for differences.
    told = sized.with_columns(pl.col(NORMS).round_sig_figs(9))
    columns = {
        "within_spearman": _correlations(sized, "spearman", *_HEAD),
        "within_pearson": _correlations(sized, "pearson", *_HEAD),
        "same_size_spearman": _correlations(told, "spearman", *_HEAD, "share"),
        "whole_spearman": _correlations(whole, "spearman", *_HEAD),
        "pooled_spearman": _correlations(sized, "spearman"),
        "pooled_pearson": _correlations(sized, "pearson"),
    }
    schema = {"norm": pl.String, **dict.fromkeys(columns, pl.Float64)}
    return pl.DataFrame({"norm": NORMS, **columns} if len(perturbations) else {}, schema=schema)


def _correlations(
    frame: pl.DataFrame, method: Literal["spearman", "pearson"], *by: str
) -> tuple[float | None, ...]:
    """Return the correlation of each norm with the change, as a mean over groups."""
    correlations = [pl.corr(norm, "hidden", method=method).alias(norm) for norm in NORMS]
    if not by:
        return frame.select(correlations).row(0)
    return frame.group_by(by).agg(correlations).select(pl.col(NORMS).fill_nan(None).mean()).row(0)


def by_perturbation(perturbations: pl.DataFrame) -> pl.DataFrame:
    """Return the mean norm and change of head output and final hidden state for each perturbation and size.

    Moves taken as a whole come last, with a share of null.
    """
    return (
        perturbations.group_by("perturbation", "share")
        .agg(pl.col("structure", "frobenius", "output", "hidden").mean(), pl.len().alias("count"))
        .sort("share", "perturbation", nulls_last=True)
    )


def norm_charts(perturbations: pl.DataFrame) -> Charts:
    """Return how well norms follow the model's output and what each kind of perturbation changes; none of none."""
    if not len(perturbations):
        return {}
    names = {"index": "norm", "variable_name": "over", "value_name": "correlation"}
    follows = norm_correlations(perturbations).unpivot(list(_FOLLOWS), **names)
    named = follows.with_columns(
        pl.col("norm").replace_strict(NORM_NAMES), pl.col("over").replace_strict(_FOLLOWS)
    )
    kinds = (
        by_perturbation(perturbations).drop_nulls("share").select("perturbation", "share", "hidden")
    )
    return {
        "norms": bars(
            named,
            "correlation",
            "norm",
            "over",
            x_title="Spearman correlation",
            y_title="Norm",
            color_title="",
            title="How well each norm follows the final hidden state",
        ),
        "perturbations": lines(
            kinds,
            "share",
            "hidden",
            "perturbation",
            x_title="Size",
            y_title="Change of final state",
            color_title="Perturbation",
            title="Perturbations of one Frobenius norm",
        ),
    }
