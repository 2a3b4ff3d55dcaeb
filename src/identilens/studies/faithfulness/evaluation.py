"""Evaluation of orders of parts by what removing their first parts does, beside random orders."""

from collections.abc import Callable, Iterator, Mapping, Sequence

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
from identilens.runs.tables import Row
from identilens.studies.faithfulness.settings import FaithfulnessSettings

Sets = Bool[Tensor, "set part"]
Effects = Float[Tensor, "set outcome"]
Removal = Callable[[Sets], Effects]
"""Gives what removing sets of parts does to each outcome."""


MEASURES = ("correlation", "aopc", "naopc", "p")


def once(removal: Removal) -> Removal:
    """Return a removal that runs every set once."""
    known: dict[bytes, Tensor] = {}

    def effects(sets: Sets) -> Effects:
        names = [one.numpy().tobytes() for one in sets]
        new = {name: one for name, one in zip(names, sets, strict=True) if name not in known}
        if new:
            known.update(zip(new, removal(torch.stack(list(new.values()))), strict=True))
        return torch.stack([known[name] for name in names])

    return effects


def evaluate(
    removal: Removal,
    explained: Mapping[str, Float[Tensor, " part"]],
    floor: Mapping[str, float],
    settings: FaithfulnessSettings,
    generator: torch.Generator,
    sizes: Sequence[int] = (),
) -> Iterator[Row]:
    """Yield, for each outcome and order, its rank correlation with single effects, its area and place, and p.

    Random orders follow those of the explanations, the last of which is the first random one. Areas of all orders
    extend the bounds of the search. Effects apart by the noise ``floor`` or less are equal, which counts for chance.
    With ``sizes`` of groups, no best order is searched.
    """
    given = torch.stack(list(explained.values()))
    draws, parts = settings.draws, given.shape[1]
    more = torch.rand(draws - 1, parts, generator=generator, dtype=torch.float64)
    scores = torch.cat([given, more])
    groups = sizes or [size for size in settings.groups if size < parts]
    sets = removal_sets(removal_order(scores, generator), groups)
    singles = removal(torch.eye(parts, dtype=torch.bool))
    areas = removal(sets.flatten(0, 1)).unflatten(0, sets.shape[:2]).mean(1)
    # Scores without an order follow nothing: 0. Effects without an order leave nothing to follow: NaN.
    for column, (outcome, noise) in enumerate(floor.items()):
        own, effects = areas[:, column], singles[:, column]
        placed = own * torch.nan
        if not sizes:
            bounds = order_bounds(
                lambda sets, column=column: removal(sets)[:, column],
                effects,
                groups,
                width=1,
                pool=settings.searched,
                known=own,
            )
            placed = normalised_area(own, bounds, floor=noise)
        follows = rank_agreement(scores, effects.expand_as(scores), floor=noise)
        follows = follows.nan_to_num(0.0) + 0 * rank_agreement(effects, effects, floor=noise)
        p = permutation_p(own - noise, own[-draws:])
        at = {"parts": parts, "outcome": outcome, "floor": noise}
        names = [*explained, *["random"] * len(more)]
        found = torch.stack([follows, own, placed, p], 1).tolist()
        for number, (name, values) in enumerate(zip(names, found, strict=True)):
            measures = dict(zip(MEASURES, values, strict=True))
            yield {**at, "explanation": name, "draw": max(0, number + 1 - len(given)), **measures}
