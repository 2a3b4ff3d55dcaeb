"""Nearest neighbour look-up within a sentence: the input token that is nearest to a predicted vector."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg.checks import check_finite

Distance = Literal["cosine", "l2"]

# Look-up runs in float64. A difference of two computed distances below this share of their size is rounding:
# the vectors may be the same.
TIE = 1e-12
BLOCK_ENTRIES = (
    4_000_000  # Largest number of float64 entries of one block of vectors or distances: 32 MB.
)


@dataclass(frozen=True, eq=False)
class LookUp:
    """Token identifiability rate of a set of predicted vectors, in [0, 1].

    Brunner's rate is the share of tokens for which their own position is the nearest. For the token rate, any position
    with the same token id counts. Chance is the expected rate of a random guess: the mean of 1/n over the tokens.
    """

    rate: float
    token_rate: float
    chance: float
    token_chance: float
    tokens: int
    sentences: int


def look_up(
    predicted: Float[Tensor, "token d"],
    inputs: Float[Tensor, "token d"],
    lengths: Sequence[int],
    *,
    distance: Distance,
    offset: int = 0,
    token_ids: Int[Tensor, " token"] | None = None,
) -> LookUp:
    """Return how often the nearest input of the same sentence is the right one.

    c(e_i) = NN(g(e_i)) = x_i (Brunner et al. 2020, section 4). An input x_i includes its position, so each position is
    its own target, also where a token is repeated. **Ties**: if m inputs are nearest at the same distance (up to the
    rounding of float64), the token gets a credit of 1/m if its target is among them, the average of a random choice.
    So a constant prediction gets no more than this: with cosine distance a zero vector is equally far from all inputs
    and gets 1/n. A sentence of one token is always recovered, and its chance is 1. Cost O(n² d) per sentence.

    The target of token i is i + offset; tokens without a target in their sentence are left out. The vocabulary ids of
    the inputs give the token rate, which ignores position; without them each token counts as one of its own.

    Examples:
        >>> import torch
        >>> from identilens.measures.tokens.lookup import look_up
        >>> inputs = torch.eye(4)
        >>> found = look_up(inputs[[0, 1, 2, 2]], inputs, [2, 2], distance="cosine")
        >>> found.rate, found.chance
        (0.75, 0.5)

    Raises:
        InputError: Vectors of another width than the inputs, another distance, or lengths that do not fit.
        NumericalError: NaN or infinity.
    """
    check_finite(predicted=predicted, inputs=inputs)
    if predicted.shape[-1] != inputs.shape[-1]:
        raise InputError(
            f"expected vectors as wide as the inputs, got {predicted.shape[-1]} and {inputs.shape[-1]}; only a learned "
            "map can compare them: fit a Probe"
        )
    ids = (torch.arange(len(inputs)) if token_ids is None else token_ids).to(inputs.device)
    if distance not in get_args(Distance) or sum(lengths) != len(inputs):
        raise InputError(
            f"expected distance cosine or l2, and sentences of {len(inputs)} tokens together; got {distance!r}, "
            f"{sum(lengths)}."
        )
    sizes = torch.tensor(lengths)
    starts = sizes.cumsum(0) - sizes
    parts = [torch.zeros(4, 0).to(inputs).double()]
    # Sentences of one length go together.
    for size in sizes[sizes > abs(offset)].unique().tolist():
        asked = torch.arange(max(0, -offset), min(size, size - offset))
        together = max(1, BLOCK_ENTRIES // (size * max(size, inputs.shape[1])))
        for first in starts[sizes == size].split(together):
            rows = (first[:, None] + torch.arange(size)).to(inputs.device)
            for queries in asked.split(max(1, BLOCK_ENTRIES // rows.numel())):
                nearest = _nearest(predicted[rows[:, queries]], inputs[rows], distance)
                share = nearest / nearest.sum(-1, keepdim=True)
                right = queries + offset
                alike = (ids[rows[:, right], None] == ids[rows][:, None]).double()
                credit = share[:, torch.arange(len(right)), right]
                scores = credit, (share * alike).sum(-1), alike.new_tensor(1 / size), alike.mean(-1)
                parts.append(torch.stack(torch.broadcast_tensors(*scores)).flatten(1))
    scores = torch.cat(parts, 1)
    sentences = sum(size > abs(offset) for size in lengths)
    rate, token_rate, chance, token_chance = scores.mean(1).tolist()
    return LookUp(rate, token_rate, chance, token_chance, scores.shape[1], sentences)


def _nearest(
    queries: Float[Tensor, "text query d"], table: Float[Tensor, "text row d"], distance: Distance
) -> Float[Tensor, "text query row"]:
    """Return, as 0 or 1, which rows of its table are nearest to each query: one, or several on a tie."""
    queries, table = queries.double(), table.double()
    if distance == "cosine":
        # Multiplying by the reciprocal is several times as fast as dividing by a broadcast column.
        queries, table = (
            v * v.norm(dim=-1, keepdim=True).clamp_min(1e-300).reciprocal()
            for v in (queries, table)
        )
        far = -(queries @ table.mT)
        size = torch.ones_like(far[..., :1])
    else:
        # ‖g − x‖² minus ‖g‖², which is the same for every x.
        squared = table.square().sum(-1)[:, None, :]
        far = squared - 2 * (queries @ table.mT)
        largest = squared.amax(-1, keepdim=True)
        size = largest + 2 * queries.norm(dim=-1, keepdim=True) * largest.sqrt()
    return (far <= far.amin(-1, keepdim=True) + TIE * size).double()
