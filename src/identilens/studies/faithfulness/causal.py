"""A, causal: what removing keys from a row does to the model, and how well each explanation's order follows it."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.models.substitution import Rows
from identilens.studies.faithfulness.drawing import DrawnMap
from identilens.studies.faithfulness.judging import judged
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
    """Yield what `judged` says of each explanation of each row, for each intervention."""
    for row, query in enumerate(drawn.queries):
        for intervention in settings.interventions:
            removed = RemovedKeys(drawn, row, intervention)
            at = {**drawn.place, "query": query, "n_key": len(removed.keys), "intervention": intervention}
            scores = {name: one[row, removed.keys].cpu() for name, one in explained.items()}
            judgements = judged(removed.effects, scores, settings, drawn.generator, drawn.floor)
            yield from ({**at, **found} for found in judgements)
