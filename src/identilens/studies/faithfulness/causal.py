"""A, causal: what removing keys from a row does to the model, and how well each explanation's order follows it."""

from collections.abc import Iterator, Sequence
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
from identilens.models.substitution import Rows
from identilens.studies.faithfulness.drawing import DrawnMap
from identilens.studies.faithfulness.settings import FaithfulnessSettings, Intervention


class RemovedKeys:
    """What each set of removed keys of one row does to the model; every set is run once."""

    def __init__(self, drawn: DrawnMap, row: int, intervention: Intervention) -> None:
        self._drawn, self._query, self._weights = drawn, drawn.queries[row], drawn.weights[row]
        self._intervention = intervention
        # The keys that the row sees; sets and scores are over these.
        self.keys = torch.nonzero(drawn.seen[row]).flatten()
        self._known: dict[bytes, dict[str, float]] = {}

    def effects(self, sets: Bool[Tensor, "set part"]) -> dict[str, Float[Tensor, " set"]]:
        """Return the changes of the hidden states, logits and loss by each set of parts."""
        names = [one.cpu().numpy().tobytes() for one in sets]
        new = {name: one for name, one in zip(names, sets, strict=True) if name not in self._known}
        if new:
            changes = [Rows([self._query], self._without(one)[None]) for one in new.values()]
            found = {name: values.tolist() for name, values in self._drawn.runs.effects(changes).items()}
            for at, name in enumerate(new):
                self._known[name] = {outcome: values[at] for outcome, values in found.items()}
        outcomes = self._known[names[0]]
        return {
            outcome: torch.tensor([self._known[name][outcome] for name in names], dtype=torch.float64)
            for outcome in outcomes
        }

    def _without(self, removed: Bool[Tensor, " part"]) -> Float[Tensor, " key"]:
        weights = self._weights.clone()
        weights[self.keys[removed]] = 0.0
        left = weights.sum()
        return weights / left if self._intervention == "renormalise" and left > 0 else weights


def causal_rows(
    drawn: DrawnMap, explained: dict[str, Float[Tensor, "row key"]], settings: FaithfulnessSettings
) -> Iterator[dict[str, Any]]:
    """Yield, for each row, intervention, outcome and explanation, its rank correlation with single effects and areas.

    The areas of the explanations' orders extend the bounds that the search finds.
    """
    for row, query in enumerate(drawn.queries):
        for intervention in settings.interventions:
            removed = RemovedKeys(drawn, row, intervention)
            parts = len(removed.keys)
            sizes = [size for size in settings.groups if size < parts]
            singles = removed.effects(torch.eye(parts, dtype=torch.bool))
            scores = torch.stack([one[row, removed.keys] for one in explained.values()]).cpu()
            at = {**drawn.place, "query": query, "n_key": parts, "intervention": intervention}
            areas = _areas(removed, scores, sizes, settings, singles, drawn.generator)
            for outcome, effects in singles.items():
                correlations = rank_agreement(scores, effects.expand_as(scores)).nan_to_num(0.0)
                for number, name in enumerate(explained):
                    found = {key: float(one[number]) for key, one in areas[outcome].items()}
                    yield {
                        **at, "outcome": outcome, "explanation": name, "correlation": float(correlations[number]),
                        **{key: value if value == value else None for key, value in found.items()},
                    }  # fmt: skip


def _areas(
    removed: RemovedKeys, scores: Float[Tensor, "explanation part"], sizes: Sequence[int],
    settings: FaithfulnessSettings, singles: dict[str, Float[Tensor, " part"]], generator: torch.Generator,
) -> dict[str, dict[str, Float[Tensor, " explanation"]]]:  # fmt: skip
    """Return the area of each explanation's order, and its place between the worst and the best order, by outcome."""
    sets = removal_sets(removal_order(scores, generator), sizes)
    shape = sets.shape[:2]
    areas = {name: area(one.view(shape)) for name, one in removed.effects(sets.flatten(0, 1)).items()}
    found = {}
    for outcome, own in areas.items():
        bounds = order_bounds(
            lambda sets, outcome=outcome: removed.effects(sets)[outcome], singles[outcome], sizes,
            width=settings.beam, pool=settings.searched,
        )  # fmt: skip
        bounds = OrderBounds(min(bounds.lowest, float(own.min())), max(bounds.highest, float(own.max())))
        found[outcome] = {"aopc": own, "naopc": normalised_area(own, bounds)}
    return found
