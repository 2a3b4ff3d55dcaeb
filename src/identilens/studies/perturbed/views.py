"""How perturbations are drawn: which norm follows the model's output, and what each kind changes."""

import polars as pl

from identilens.charts.kit import AnyChart, bars, lines

_NORMS = {
    "structure": "‖·‖_S",
    "structure_effective": "‖·‖_S, effective",
    "one": "1-norm",
    "infinity": "∞-norm",
    "frobenius": "Frobenius",
    "output": "head’s output",
}
_FOLLOWS = {"within_spearman": "within heads", "pooled_spearman": "pooled"}


def norm_charts(correlations: pl.DataFrame, by_perturbation: pl.DataFrame) -> dict[str, AnyChart]:
    """Return how well norms follow the model's output, and what each kind of perturbation changes.

    Args:
        correlations: From `norm_correlations`.
        by_perturbation: From `by_perturbation`.
    """
    follows = correlations.unpivot(list(_FOLLOWS), index="norm", variable_name="over", value_name="correlation")
    named = follows.with_columns(pl.col("norm").replace_strict(_NORMS), pl.col("over").replace_strict(_FOLLOWS))
    kinds = by_perturbation.drop_nulls("share").select("perturbation", "share", "hidden")
    return {
        "norms": bars(
            named, "correlation", "norm", "over", x_title="Spearman correlation", y_title="", color_title="",
            title="How well each norm follows the final hidden state",
        ),
        "perturbations": lines(
            kinds, "share", "hidden", "perturbation", x_title="Size", y_title="Change of final state",
            color_title="Perturbation", title="Perturbations of one Frobenius norm",
        ),
    }  # fmt: skip
