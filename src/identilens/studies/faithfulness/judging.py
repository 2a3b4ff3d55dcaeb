"""How well the orders of explanations follow what removing parts does."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.measures.explanations.agreement import rank_agreement
from identilens.measures.explanations.orders import (
    OrderBounds,
    area,
    normalised_area,
    order_bounds,
    removal_order,
    removal_sets,
)
from identilens.studies.faithfulness.settings import FaithfulnessSettings

Removal = Callable[[Bool[Tensor, "set part"]], Mapping[str, Float[Tensor, " set"]]]
"""Gives what removing sets of parts does to each outcome."""


def judged(
    removal: Removal, explained: Mapping[str, Float[Tensor, " part"]], settings: FaithfulnessSettings,
    generator: torch.Generator, floor: Mapping[str, float],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield, for each outcome and explanation, its rank correlation with single effects, its area, and its place.

    The areas of the explanations' orders extend the bounds that the search finds. Effects that differ by no more than
    the outcome's noise ``floor`` are equal.
    """
    scores = torch.stack(list(explained.values()))
    parts = scores.shape[1]
    sizes = [size for size in settings.groups if size < parts]
    singles = removal(torch.eye(parts, dtype=torch.bool))
    sets = removal_sets(removal_order(scores, generator), sizes)
    areas = {outcome: area(one.view(sets.shape[:2])) for outcome, one in removal(sets.flatten(0, 1)).items()}
    for outcome, own in areas.items():
        bounds = order_bounds(
            lambda sets, outcome=outcome: removal(sets)[outcome], singles[outcome], sizes,
            width=settings.beam, pool=settings.searched,
        )  # fmt: skip
        bounds = OrderBounds(min(bounds.lowest, float(own.min())), max(bounds.highest, float(own.max())))
        noise, effects = floor[outcome], singles[outcome]
        placed = normalised_area(own, bounds, floor=noise)
        # Scores without an order follow nothing: 0. Effects without an order leave nothing to follow: no value.
        ordered = not bool(rank_agreement(torch.arange(parts).double(), effects, floor=noise).isnan())
        correlations = rank_agreement(scores, effects.expand_as(scores), floor=noise).nan_to_num(0.0)
        for number, name in enumerate(explained):
            yield {
                "outcome": outcome, "explanation": name, "floor": noise, "above_floor": int((effects > noise).sum()),
                "correlation": float(correlations[number]) if ordered else None,
                "aopc": float(own[number]), "naopc": None if placed[number].isnan() else float(placed[number]),
            }  # fmt: skip
