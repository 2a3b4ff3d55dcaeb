"""Which maps and rows of a text are tested, and what is known of their rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import UnsupportedModelError
from identilens.measures.explanations.rows import explain_rows, value_zeroing
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.layout import Site, chosen_heads
from identilens.models.lens import Lens
from identilens.models.map_runs import MapRuns
from identilens.models.reading import read_head
from identilens.models.substitution import Rows
from identilens.studies.faithfulness.noise import roundings
from identilens.studies.faithfulness.settings import FaithfulnessSettings


@dataclass
class DrawnMap:
    """One attention map with the rows that are tested, and the runs of its model with changes of it."""

    place: dict[str, Any]
    head: Head
    queries: list[int]
    runs: MapRuns
    generator: torch.Generator
    zeroes: bool = field(init=False, default=True)

    @property
    def weights(self) -> Float[Tensor, "row key"]:
        """The weights of the rows."""
        return self.head.attention[self.queries]

    @property
    def visible(self) -> Bool[Tensor, "row key"] | None:
        """Which keys the rows see; None if all."""
        return None if self.head.visible is None else self.head.visible[self.queries]

    @property
    def seen(self) -> Bool[Tensor, "row key"]:
        """Which keys the rows see."""
        return torch.ones_like(self.weights, dtype=torch.bool) if self.visible is None else self.visible

    @property
    def free(self) -> Bool[Tensor, " row"]:
        """Which rows have other weights with the same output."""
        spaces = self.head.projected.simplex_spaces(len(self.queries), self.visible)
        return torch.tensor([space.nullity > 0 for space in spaces], device=self.weights.device)

    @cached_property
    def floor(self) -> dict[str, float]:
        """The noise floor of each outcome: its largest change when the rows' outputs are rounded differently."""
        factors = roundings((len(self.queries), 1), self.head.values.dtype, self.generator.initial_seed())
        rounded = [Rows(self.queries, self.weights * one) for one in factors.to(self.weights.device)]
        return {name: float(values.max()) for name, values in self.runs.effects(rounded).items()}

    def explained(self, weights: Float[Tensor, "row key"]) -> dict[str, Float[Tensor, "row key"]]:
        """Return every explanation of these weights of the rows, the last one a random order."""
        found = explain_rows(weights, self.head.projected, self.visible)
        if self.zeroes and (scores := self._zeroed(weights)) is not None:
            found["value_zeroing"] = scores
        drawn = torch.rand(weights.shape, generator=self.generator, dtype=torch.float64)
        return {**found, "random": drawn.to(weights.device) * self.seen}

    def _zeroed(self, weights: Float[Tensor, "row key"]) -> Float[Tensor, "row key"] | None:
        """Return value zeroing: only the rows' outputs are read, so that a value of zero is a weight of zero."""
        parts = [weights]
        for key in range(weights.shape[1]):
            parts.append(weights.clone())
            parts[-1][:, key] = 0.0
        try:
            whole, *without = self.runs.layer_outputs([Rows(self.queries, part) for part in parts])
        except UnsupportedModelError:  # the model has no list of layers
            self.zeroes = False
            return None
        # The root has the same order, and is in proportion to the change, so that small scores do not count as ties.
        return value_zeroing(whole[self.queries], torch.stack(without)[:, self.queries]).sqrt()


def places_of(lens: Lens, item: Item, settings: FaithfulnessSettings) -> list[tuple[Site, int]]:
    """Return the heads from which maps are drawn.

    Raises:
        InputError: If the model lacks one of them.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
    """
    return list(chosen_heads(lens.sites(item), settings.layers, settings.heads, settings.kind))


def drawn_maps(lens: Lens, item: Item, text: int, settings: FaithfulnessSettings) -> list[DrawnMap]:
    """Return the maps of a text that are tested, drawn with their rows from the seed and the text's number."""
    places = places_of(lens, item, settings)
    random = np.random.default_rng([settings.seed, text])
    found = []
    for number in sorted(random.choice(len(places), min(settings.maps, len(places)), replace=False)):
        site, head = places[number]
        read = read_head(lens, item, site.layer, head, site.kind)
        read.refuse_sink()
        queries = _rows(read, settings, random)
        if queries:
            generator = torch.Generator().manual_seed(int(random.integers(2**31)))
            place = {"text": text, "layer": site.layer, "head": head, "kind": site.kind}
            found.append(DrawnMap(place, read, queries, MapRuns(lens, item, read), generator))
    return found


def _rows(head: Head, settings: FaithfulnessSettings, random: np.random.Generator) -> list[int]:
    """Return rows that see more keys than the smallest group removes."""
    n_query, n_key = head.attention.shape
    seen = [n_key] * n_query if head.visible is None else head.visible.sum(-1).tolist()
    usable: Sequence[int] = [query for query, keys in enumerate(seen) if keys > settings.groups[0]]
    return sorted(map(int, random.choice(usable, min(settings.rows, len(usable)), replace=False))) if usable else []
