"""What perturbed weights say: which norm follows the change of the model's output, as tables and charts."""

from typing import Literal

import polars as pl

from identilens.charts.kit import bars
from identilens.charts.views import View
from identilens.runs.tables import Columns, decimals, integers

PERTURBATIONS: Columns = {
    "text": pl.Int64,
    "kind": pl.String,
    **integers("layer", "head"),
    "perturbation": pl.String,
    "draw": pl.Int64,
    **decimals("share", "structure", "structure_effective", "one", "infinity", "frobenius"),
    **decimals("output", "hidden"),
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
_PERTURBED = """\
Weights are perturbed and put back into the running model, one head at a time: aware moves keep what W contains and \
reshuffle the rest, breaking ones take away what W contains, random ones reshuffle everything. At one size all three \
have the same Frobenius norm. The question is which norm of the change says best how far the final hidden state moves, \
within a head (within) or over all (pooled).
The head's output is no norm of weights: it knows the values, and shows what weights alone leave out. Same size \
compares perturbations of one Frobenius norm only; whole moves are each as large as they can be.
"""


def norm_correlations(perturbations: pl.DataFrame) -> pl.DataFrame:
    """Return how well each norm follows the change of the final hidden state under perturbations.

    For each norm, correlations over the perturbations of one head and text (``within``), over those of one head, text
    and Frobenius norm (``same_size``; null where a norm does not tell them apart), both as means, and over all at once
    (``pooled``). These leave out moves taken as a whole, which are compared among themselves, within head and text
    (``whole``). ``output`` is the relative change of the head's own output, which no norm on weights alone can know.
    """
    sized = perturbations.drop_nulls("share")
    unsized = perturbations.filter(pl.col("share").is_null())
    # Norms of one size differ by rounding, which ranks would take for differences.
    told = sized.with_columns(pl.col(NORMS).round_sig_figs(9))
    columns = {
        "within_spearman": _correlations(sized, "spearman", *_HEAD),
        "within_pearson": _correlations(sized, "pearson", *_HEAD),
        "same_size_spearman": _correlations(told, "spearman", *_HEAD, "share"),
        "whole_spearman": _correlations(unsized, "spearman", *_HEAD),
        "pooled_spearman": _correlations(sized, "spearman"),
        "pooled_pearson": _correlations(sized, "pearson"),
    }
    return pl.DataFrame({"norm": NORMS, **columns}).filter(len(perturbations) > 0)


def _correlations(
    frame: pl.DataFrame, method: Literal["spearman", "pearson"], *by: str
) -> tuple[float | None, ...]:
    """Return the correlation of each norm with the change, as a mean over groups."""
    correlations = [pl.corr(norm, "hidden", method=method).alias(norm) for norm in NORMS]
    groups = frame.group_by(pl.lit(0), *by).agg(correlations)
    return groups.select(pl.col(NORMS).fill_nan(None).mean()).row(0)


def by_perturbation(perturbations: pl.DataFrame) -> pl.DataFrame:
    """Return the mean norm and change of head output and final hidden state for each perturbation and size.

    Moves taken as a whole come last, with a share of null.
    """
    return (
        perturbations.group_by("perturbation", "share")
        .agg(pl.col("structure", "frobenius", "output", "hidden").mean(), pl.len().alias("count"))
        .sort("share", "perturbation", nulls_last=True)
    )


def named_norms(perturbations: pl.DataFrame) -> pl.DataFrame:
    """Return the correlations of `norm_correlations` with the norms by name."""
    return norm_correlations(perturbations).with_columns(pl.col("norm").replace(NORM_NAMES))


NORMS_VIEW = View(
    bars,
    (("within_spearman", "pooled_spearman"), "norm", "measure"),
    title="How well each norm follows the final hidden state",
    text=_PERTURBED,
    table="norms",
    listed=True,
)
"""The rank correlations of a result that has ``norms``."""
