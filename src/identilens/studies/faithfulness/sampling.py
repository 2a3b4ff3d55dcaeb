"""Settings of the study, and the maps and rows of a text that are drawn."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import UnsupportedModelError
from identilens.linalg import FLOAT32_EPS
from identilens.measures.explanations.rows import explain_rows, value_zeroing
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.layout import chosen_heads
from identilens.models.lens import Lens
from identilens.models.map_runs import MapRuns
from identilens.models.reading import read_head
from identilens.models.substitution import Rows
from identilens.runs.tables import Row
from identilens.studies.faithfulness.settings import FaithfulnessSettings, Intervention

Weights = Float[Tensor, "row key"]
"""A number of each key of some rows: weights, or scores."""


ROUNDINGS = 8
"""Roundings with which a noise floor is measured."""


@dataclass
class SampledMap:
    """One attention map with the rows that are tested, and the runs of its model with changes of it.

    Attributes:
        place: Columns of a table that name the map.
        head: The head.
        queries: Positions of the rows.
        weights: Weights of the rows.
        seen: Mask of the keys that the rows see.
        runs: Runs of the model with changes of the map.
        generator: Source of all further draws.
    """

    place: Row
    head: Head
    queries: list[int]
    weights: Weights
    seen: Bool[Tensor, "row key"]
    runs: MapRuns
    generator: torch.Generator

    @cached_property
    def free(self) -> list[int]:
        """The rows that have other weights with the same output."""
        spaces = self.head.projected.simplex_spaces(len(self.queries), self.seen)
        return [row for row, space in enumerate(spaces) if space.nullity > 0]

    @cached_property
    def floor(self) -> dict[str, float]:
        """The noise floor of each outcome: its largest change when the rows' outputs are rounded differently.

        Factors are 1 + ε u, u uniform on [−1, 1], ε that of the precision, at least float32's (that of softmaxes).
        """
        eps = max(torch.finfo(self.head.values.dtype).eps, FLOAT32_EPS)
        generator = torch.Generator().manual_seed(self.generator.initial_seed())
        shape = ROUNDINGS, len(self.queries), 1
        factors = 1 + eps * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1)
        effects = self.runs.effects([Rows(self.queries, self.weights * one) for one in factors])
        return {name: float(values.max()) for name, values in effects.items()}

    def removed(
        self, row: int, intervention: Intervention, sets: Bool[Tensor, "set part"]
    ) -> Float[Tensor, "set outcome"]:
        """Return the effects of removing sets of the keys that a row sees, by outcome as in ``floor``."""
        weights = self.weights[row].repeat(len(sets), 1)
        weights[:, self.seen[row]] *= ~sets.to(weights.device)
        if intervention == "renormalise":
            left = weights.sum(-1, keepdim=True)
            weights = torch.where(left > 0, weights / left, weights)
        effects = self.runs.effects([Rows([self.queries[row]], one[None]) for one in weights])
        return torch.stack([values.double().cpu() for values in effects.values()], -1)

    def explained(self, weights: Weights) -> dict[str, Weights]:
        """Return every explanation of these weights of the rows, the last one a random order."""
        parts = [
            explain_rows(weights[rows], T, self.seen[rows])
            for rows, T in self.head.alike(self.queries)
        ]
        found = {name: torch.cat([one[name] for one in parts]) for name in parts[0]}
        # Only the rows' outputs are read, so that a value of zero is a weight of zero.
        zeroed = weights.repeat(weights.shape[1] + 1, 1, 1)
        zeroed[1:].diagonal(dim1=0, dim2=2).zero_()
        with suppress(UnsupportedModelError):  # a model without a list of layers
            outputs = self.runs.layer_outputs([Rows(self.queries, one) for one in zeroed])
            whole, without = outputs[:, self.queries].split([1, len(zeroed) - 1])
            # The root has the same order, and is in proportion to the change: small scores do not count as ties.
            found["value_zeroing"] = value_zeroing(whole[0], without).sqrt().cpu()
        drawn = torch.rand(weights.shape, generator=self.generator, dtype=torch.float64)
        return {**found, "random": drawn * self.seen}


def sample(random: np.random.Generator, values: Sequence[int], count: int) -> list[int]:
    """Return some of the values, or all if there are no more, in order."""
    return sorted(random.choice(values, min(count, len(values)), replace=False).tolist())


def sampled_maps(
    lens: Lens,
    item: Item,
    text: int,
    settings: FaithfulnessSettings,
) -> list[SampledMap]:
    """Return the maps of a text that are tested, drawn with their rows from the seed and the text's number.

    Raises:
        InputError: If the model lacks a head, or one has an attention sink.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
    """
    places = list(chosen_heads(lens.sites(item), settings.layers, settings.heads, settings.kind))
    random = np.random.default_rng([settings.seed, text])
    found = []
    for number in sample(random, range(len(places)), settings.maps):
        site, number = places[number]
        place = {"layer": site.layer, "head": number, "kind": site.kind}
        head = read_head(lens, item, **place)
        head.refuse_sink()
        seen = head.attention.isfinite() if head.visible is None else head.visible
        # Rows that see more keys than the smallest group removes.
        usable = (seen.sum(-1) > settings.groups[0]).nonzero()[:, 0].tolist()
        if usable:
            rows = sample(random, usable, settings.rows)
            generator = torch.Generator().manual_seed(int(random.integers(2**31)))
            held = rows, head.attention[rows], seen[rows]
            found.append(SampledMap(place, head, *held, MapRuns(lens, item, head), generator))
    return found
