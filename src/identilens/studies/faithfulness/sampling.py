"""Settings of the study, and the maps and rows of a text that are drawn."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import SettingError, UnsupportedModelError
from identilens.linalg import FLOAT32_EPS
from identilens.measures.explanations.rows import explain_rows, value_zeroing
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.layout import Site, chosen_heads
from identilens.models.lens import Lens
from identilens.models.map_runs import MapRuns
from identilens.models.reading import read_head
from identilens.models.substitution import Rows
from identilens.runs.settings import LIST, NonNegative, Numbers, Positive
from identilens.runs.tables import Row
from identilens.studies.heads import KindSettings

Intervention = Literal["zero", "renormalise"]


@dataclass(frozen=True, kw_only=True)
class FaithfulnessSettings(KindSettings):
    """The maps and rows that are drawn, and the tests of their explanations.

    Attributes:
        maps: Number of attention maps drawn from each text.
        rows: Number of rows drawn from each map.
        interventions: Set weights to zero (zero), or also scale the other weights of the row to sum to 1 (renormalise).
        groups: Sizes of the groups of keys that are removed together, smallest first.
        beam: Width of the beam that searches the best and the worst order.
        searched: Number of keys from which that search chooses; at least the largest group.
        alternatives: Number of alternatives drawn of each row.
        explained: Number of final hidden states of each text for which explanations by input tokens are tested too.
        attribution: Among these gradient × input, integrated gradients and occlusion, which need captum.
        seed: Seed of the random numbers.
    """

    maps: Positive = 1
    rows: Positive = 2
    interventions: Annotated[tuple[Intervention, ...], LIST] = ("zero", "renormalise")
    groups: Numbers = (1, 2, 4, 8)
    beam: Positive = 1
    searched: Positive = 16
    alternatives: Positive = 4
    explained: NonNegative = 0
    attribution: bool = False
    seed: NonNegative = 0

    def check(self) -> None:
        """Check that groups grow, that the search can choose the largest, and that attribution has something to do."""
        if self.attribution and not self.explained:
            raise SettingError(
                "attribution", "to be left out, or explained of at least 1", self.attribution
            )
        if list(self.groups) != sorted(set(self.groups)) or not self.groups or self.groups[0] < 1:
            raise SettingError(
                "groups", "as growing sizes of at least 1, such as 1,2,4,8", self.groups
            )
        if self.searched < self.groups[-1]:
            raise SettingError(
                "searched", f"of at least the largest group, {self.groups[-1]}", self.searched
            )


ROUNDINGS = 8
"""Roundings with which a noise floor is measured."""


@dataclass
class SampledMap:
    """One attention map with the rows that are tested, and the runs of its model with changes of it."""

    place: Row
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
        """Mask of the keys that the rows see; None if all."""
        return None if self.head.visible is None else self.head.visible[self.queries]

    @property
    def seen(self) -> Bool[Tensor, "row key"]:
        """Mask of the keys that the rows see."""
        return (
            torch.ones_like(self.weights, dtype=torch.bool)
            if self.visible is None
            else self.visible
        )

    @property
    def free(self) -> Bool[Tensor, " row"]:
        """Mask of the rows that have other weights with the same output."""
        spaces = self.head.projected.simplex_spaces(len(self.queries), self.visible)
        return torch.tensor([space.nullity > 0 for space in spaces])

    @cached_property
    def floor(self) -> dict[str, float]:
        """The noise floor of each outcome: its largest change when the rows' outputs are rounded differently."""
        factors = roundings(
            (len(self.queries), 1), self.head.values.dtype, self.generator.initial_seed()
        )
        rounded = [Rows(self.queries, self.weights * one) for one in factors]
        return {name: float(values.max()) for name, values in self.runs.effects(rounded).items()}

    def explained(self, weights: Float[Tensor, "row key"]) -> dict[str, Float[Tensor, "row key"]]:
        """Return every explanation of these weights of the rows, the last one a random order."""
        seen = self.visible
        parts = [
            explain_rows(weights[rows], T, None if seen is None else seen[rows])
            for rows, T in self.head.alike(self.queries)
        ]
        found = {name: torch.cat([one[name] for one in parts]) for name in parts[0]}
        if self.zeroes and (scores := self._zeroed(weights)) is not None:
            found["value_zeroing"] = scores
        drawn = torch.rand(weights.shape, generator=self.generator, dtype=torch.float64)
        return {**found, "random": drawn * self.seen}

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
        return (
            value_zeroing(whole[self.queries], torch.stack(without)[:, self.queries]).sqrt().cpu()
        )


def places_of(lens: Lens, item: Item, settings: FaithfulnessSettings) -> list[tuple[Site, int]]:
    """Return the heads from which maps are drawn.

    Raises:
        InputError: If the model lacks one of them.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
    """
    return list(chosen_heads(lens.sites(item), settings.layers, settings.heads, settings.kind))


def sampled_maps(
    lens: Lens, item: Item, text: int, settings: FaithfulnessSettings
) -> list[SampledMap]:
    """Return the maps of a text that are tested, drawn with their rows from the seed and the text's number."""
    places = places_of(lens, item, settings)
    random = np.random.default_rng([settings.seed, text])
    found = []
    for number in sorted(
        random.choice(len(places), min(settings.maps, len(places)), replace=False)
    ):
        site, head = places[number]
        read = read_head(lens, item, site.layer, head, site.kind)
        read.refuse_sink()
        n_query, n_key = read.attention.shape
        visible = [n_key] * n_query if read.visible is None else read.visible.sum(-1).tolist()
        # Rows that see more keys than the smallest group removes.
        usable = [query for query, keys in enumerate(visible) if keys > settings.groups[0]]
        if usable:
            queries = sorted(
                map(int, random.choice(usable, min(settings.rows, len(usable)), replace=False))
            )
            generator = torch.Generator().manual_seed(int(random.integers(2**31)))
            place = {"text": text, "layer": site.layer, "head": head, "kind": site.kind}
            found.append(SampledMap(place, read, queries, MapRuns(lens, item, read), generator))
    return found


def roundings(
    shape: tuple[int, ...], dtype: torch.dtype, seed: int
) -> Float[Tensor, "rounding *shape"]:
    """Return factors 1 + ε u, u uniform on [−1, 1], ε that of the precision, at least float32's (that of softmaxes)."""
    eps, generator = max(torch.finfo(dtype).eps, FLOAT32_EPS), torch.Generator().manual_seed(seed)
    return 1 + eps * (
        2 * torch.rand(ROUNDINGS, *shape, generator=generator, dtype=torch.float64) - 1
    )
