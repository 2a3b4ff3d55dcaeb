"""How faithful explanations of final states by input tokens are, and how far other W_Q and W_K change them."""

from collections.abc import Iterator
from functools import partial
from math import isnan, nan
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import IdentilensError
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.projections import remade_projections
from identilens.studies.faithfulness.determinacy import entropy_parameters, self_agreement
from identilens.studies.faithfulness.drawing import DrawnMap, roundings
from identilens.studies.faithfulness.inputs import FinalStates, Scores
from identilens.studies.faithfulness.judging import judged
from identilens.studies.faithfulness.settings import FaithfulnessSettings


def token_rows(
    lens: Lens, item: Item, text: int, maps: list[DrawnMap], settings: FaithfulnessSettings
) -> Iterator[dict[str, Any]]:
    """Yield what `judged` says of each explanation of some final states, drawn from the text.

    ``agreement`` is that of the explanation with itself when the first of the drawn heads whose W_Q and W_K can be
    changed has other ones, with which every hidden state of the model is the same; None if there is no such head, or
    the explanation has no order.
    """
    random = np.random.default_rng([settings.seed, text, 1])
    final = FinalStates(lens, item)
    tokens = len(final.inputs)
    positions = sorted(map(int, random.choice(tokens, min(settings.explained, tokens), replace=False)))
    seed = int(random.integers(2**31))
    explained = final.explained(positions, seed, settings.attribution)
    ends = torch.tensor([final.seen(position) for position in positions])
    seen_parts = torch.arange(tokens) < ends[:, None]
    agreed = _agreements(lens, item, positions, seed, maps, explained, seen_parts, settings)
    generator = torch.Generator().manual_seed(seed)
    explained["random"] = torch.rand(len(positions), tokens, generator=generator, dtype=torch.float64)
    floors = _floors(final, positions, seed).tolist()
    for row, position in enumerate(positions):
        seen = final.seen(position)
        at = {"text": text, "position": position, "n_input": seen}
        scores = {name: one[row, :seen] for name, one in explained.items()}
        removal = partial(final.removed, position)
        floor = {"hidden": floors[row]}
        for found in judged(removal, scores, settings, generator, floor) if seen > settings.groups[0] else ():
            agreement = float(agreed[found["explanation"]][row]) if found["explanation"] in agreed else nan
            yield {**at, **found, "agreement": None if isnan(agreement) else agreement}


def _floors(final: FinalStates, positions: list[int], seed: int) -> Float[Tensor, " position"]:
    """Return how far each state moves at most when the entries of the inputs are rounded differently."""
    factors = roundings(tuple(final.inputs.shape), final.inputs.dtype, seed).to(final.inputs)
    with torch.no_grad():
        moved = torch.stack([final(final.inputs * one)[positions] for one in factors])
    own, norm = final.own[positions].double(), torch.linalg.vector_norm
    return (norm(moved.double() - own, dim=-1) / norm(own, dim=-1)).amax(0)


def _agreements(
    lens: Lens, item: Item, positions: list[int], seed: int, maps: list[DrawnMap], explained: Scores,
    seen: Bool[Tensor, "position input"], settings: FaithfulnessSettings,
) -> dict[str, Float[Tensor, " position"]]:  # fmt: skip
    """Return the agreement of each explanation with itself when a drawn head has other W_Q, W_K; empty if none can."""
    for drawn in maps:
        made = entropy_parameters(drawn)
        if made is None:
            continue
        try:
            with remade_projections(lens, item, drawn.head, *made):
                others = FinalStates(lens, item).explained(positions, seed, settings.attribution)
        except IdentilensError:
            continue
        return {name: self_agreement(one, others[name], seen.to(one.device)) for name, one in explained.items()}
    return {}
