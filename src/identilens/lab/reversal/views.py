"""Charts of the reversal task: attention on one input, W at some thresholds and its match."""

from collections.abc import Mapping, Sequence

import polars as pl
from jaxtyping import Float
from torch import Tensor

from identilens.charts.cells import token_map
from identilens.charts.kit import AnyChart, lines, rule
from identilens.lab.reversal.task import DRAFT_THRESHOLD
from identilens.measures.structure.weights import structure_weights

SHOWN = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
"""Thresholds whose W is drawn (structure2025, Fig. 2)."""

_MATCHES = (
    ("mean", "score", "score (cosine)"),
    ("mean", "support", "support (F₁)"),
    ("sum", "support", "support (F₁), l on the sum"),
)


def attention(maps: Mapping[str, Float[Tensor, "n n"]], tokens: Sequence[int]) -> AnyChart:
    """Return the cross attention of some heads, by their names, on one input (structure2025, Fig. 1)."""
    names = [str(token) for token in tokens]
    return token_map(
        maps, names[::-1], names, "Cross attention on one input", side=180, domain=(0, 1)
    )


def structures(means: Mapping[str, Float[Tensor, "n n"]]) -> AnyChart:
    """Return W at some thresholds from mean weights over inputs, by the head's name (structure2025, Fig. 2)."""
    maps = {
        f"{name}, l = {level:g}": structure_weights(mean, level)
        for name, mean in means.items()
        for level in SHOWN
    }
    places = [str(place) for place in range(len(next(iter(means.values()))))]
    return token_map(
        maps, places, places, "W by threshold l", columns=len(SHOWN) // 2, side=100, domain=(0, 1)
    )


def thresholds(sweeps: pl.DataFrame) -> AnyChart:
    """Return the match of W of a head of each model and the antidiagonal at each threshold (structure2025, Fig. 2)."""
    drawn = pl.concat(
        sweeps.filter(scale=scale).select("name", "threshold", value=measure, measure=pl.lit(words))
        for scale, measure, words in _MATCHES
    )
    chart = lines(
        drawn,
        "threshold",
        "value",
        "name",
        dash="measure",
        points=False,
        x_domain=(0, 1),
        y_domain=(0, 1.03),
        labels={"threshold": "Threshold l", "value": "Match with the antidiagonal", "name": ""},
        title="Match of W and the antidiagonal",
    )
    return rule(chart, x=DRAFT_THRESHOLD, label="the draft's l")
