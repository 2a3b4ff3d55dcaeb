"""Evaluation of orders of parts by what removing their first parts does, beside random orders."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.measures.explanations.agreement import permutation_p, rank_agreement
from identilens.measures.explanations.orders import (
    normalised_area,
    order_bounds,
    removal_order,
    removal_sets,
)
from identilens.studies.faithfulness.settings import FaithfulnessSettings

Sets = Bool[Tensor, "set part"]
Effects = Float[Tensor, "set outcome"]
Removal = Callable[[Sets], Effects]
"""Gives what removing sets of parts does to each outcome."""

Table = dict[str, Any]
"""Columns of a table: values of all rows, or one value for all of them."""


def agreement(
    scores: Float[Tensor, "*row part"],
    reference: Float[Tensor, "*#row part"],
    visible: Bool[Tensor, "*#row part"] | None = None,
    floor: float = 0.0,
) -> Float[Tensor, "*row"]:
    """Return the rank agreement with a reference: 0 for scores without an order, NaN for a reference without one."""
    agreed = rank_agreement(scores, reference.expand_as(scores), visible, floor=floor)
    return agreed.nan_to_num(0.0) + 0 * rank_agreement(reference, reference, visible, floor=floor)


def evaluate(
    removal: Removal,
    explained: Mapping[str, Float[Tensor, " part"]],
    floor: Mapping[str, float],
    sizes: Sequence[int],
    settings: FaithfulnessSettings,
    generator: torch.Generator,
    *,
    bounded: bool = True,
) -> Iterator[Table]:
    """Yield, for each outcome, the rank correlation of each order with single effects, its area and place, and p.

    Random orders follow those of the explanations, the last of which is the first random one. Areas of all orders
    extend the bounds of the search. Effects apart by the noise ``floor`` or less are equal, which counts for chance.
    Where areas are not ``bounded``, no best order is searched.
    """
    draws, parts = settings.draws, len(explained["random"])
    more = torch.rand(draws - 1, parts, generator=generator, dtype=torch.float64)
    scores = torch.stack([*explained.values(), *more])
    sets = removal_sets(removal_order(scores, generator), sizes)
    # Orders begin alike: each set runs once.
    every = torch.cat([torch.eye(parts, dtype=torch.bool), sets.flatten(0, 1)])
    distinct, places = every.unique(dim=0, return_inverse=True)
    singles, means = removal(distinct)[places].split([parts, len(every) - parts])
    areas = means.unflatten(0, sets.shape[:2]).mean(1)
    for column, (outcome, noise) in enumerate(floor.items()):
        area, effects = areas[:, column], singles[:, column]
        table = {
            "parts": parts,
            "outcome": outcome,
            "floor": noise,
            "explanation": [*explained, *["random"] * len(more)],
            "draw": [*[0] * len(explained), *range(1, draws)],
            "correlation": agreement(scores, effects, floor=noise),
            "aopc": area,
            "p": permutation_p(area - noise, area[-draws:]),
        }
        if bounded:
            effect = lambda sets, column=column: removal(sets)[:, column]  # noqa: E731
            pool = max(settings.searched, *sizes)
            bounds = order_bounds(effect, effects, sizes, pool=pool, known=area)
            table["naopc"] = normalised_area(area, bounds, floor=noise)
        yield table
