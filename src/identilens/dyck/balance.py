"""The balance condition and how far a second layer is from it (Wen et al. 2023, Eq. 11 to 18)."""

from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.dyck.embeddings import close_symbol, open_symbol
from identilens.dyck.language import Dyck
from identilens.errors import InputError

Through = Literal["norm", "identity"]


@dataclass(frozen=True, eq=False)
class SecondLayer:
    """Attention of one head behind a minimal first layer.

    Attributes:
        embeddings: e(τ) of every symbol, as `embeddings.symbols` counts them.
        scores: Logits of the attention, [query symbol, key symbol].
        values: W_V e(τ), projection of the head output included.
        through: What the output goes through next: a LayerNorm, which sees only its part orthogonal to the
            ones (P_⊥), or nothing.
    """

    embeddings: Float[Tensor, "symbol d_in"]
    scores: Float[Tensor, "query key"]
    values: Float[Tensor, "symbol d"]
    through: Through = "norm"

    @property
    def projected(self) -> Float[Tensor, "symbol d"]:
        """P_⊥ W_V e(τ), or W_V e(τ) where no norm follows."""
        return self.values - self.values.mean(1, keepdim=True) if self.through == "norm" else self.values

    def contributions(self) -> Float[Tensor, "query key d"]:
        """Return u(τ_q, τ_k) = P_⊥ exp(score) W_V e(τ_k) (Eq. 12); a query's are scaled by its largest exp(score).

        The scale of a query cancels in every quotient S/P, and keeps exp from overflowing.
        """
        scores = self.scores.double()
        return (scores - scores.amax(1, keepdim=True)).exp()[..., None] * self.projected.double()


def second_layer(
    embeddings: Float[Tensor, "symbol d_in"],
    query_weight: Float[Tensor, "d_k d_in"],
    key_weight: Float[Tensor, "d_k d_in"],
    value_weight: Float[Tensor, "d d_in"],
    through: Through = "norm",
) -> SecondLayer:
    """Return a second layer from its weights: scores (W_Q e)·(W_K e')/√d_k, values W_V e'."""
    e = embeddings.double()
    scores = (e @ query_weight.double().T) @ (e @ key_weight.double().T).T / len(query_weight) ** 0.5
    return SecondLayer(embeddings, scores, e @ value_weight.double().T, through)


@dataclass(frozen=True, eq=False)
class Balance:
    """How far a layer is from balance.

    Attributes:
        violation: Mean of S_{d,d',i,j}/P_{d,j} over all d, d', i, j: the balance violation β (section 4.2).
        largest: The largest of these quotients.
        condition: Largest deviation from Eq. 11 in the attention logits: how much the difference of a matching
            pair's logits depends on which closing bracket looks at it.
        pairs: S_{d,d',i,j} (Eq. 15), indexed [d − 1, d' − 1, i, j].
        prefixes: P_{d,j} (Eq. 17), indexed [d − 1, j].
    """

    violation: float
    largest: float
    condition: float
    pairs: Float[Tensor, "d pair_depth kind query_kind"]
    prefixes: Float[Tensor, "d query_kind"]


def measure_balance(language: Dyck, layer: SecondLayer) -> Balance:
    """Return the balance violation of a second layer.

    For a closing bracket τ_{2j,d} as query and a matching pair of type i whose open bracket has depth d',

        S_{d,d',i,j} = ‖u(τ_{2j,d}, τ_{2i−1,d'}) + u(τ_{2j,d}, τ_{2i,d'−1})‖   (Eq. 15)

    is what the pair adds to the output. Q(t) is the output behind the start token, d open brackets of types t and an
    adjacent pair of type j (Eq. 16). With t the prefix of least ‖Q‖ and t' the one of least ‖Q‖ among those with
    another last bracket, P_{d,j} = ‖Q(t')‖ (Eq. 17), the larger of the two. Both have to be told apart, so that the
    model cannot afford S much larger than P/N on length N (Theorem 2). Queries have depth 1 to D − 1: behind others no
    bracket is open, or none can have been closed.

    Args:
        language: Dyck_{k,D} with k ≥ 2 and D ≥ 2.
        layer: The second layer.

    Raises:
        InputError: For one type of brackets or depth 1: there nothing has to be told apart.

    Cost:
        k^d prefixes for each query of depth d, at most 100,000.
    """
    k, D = language.types, language.max_depth
    if k < 2 or D < 2:
        raise InputError(
            f"expected at least 2 types and depth 2, got {k} and {D}: otherwise the next closing bracket is "
            "always known"
        )
    if k ** (D - 1) > 10**5:
        raise InputError(f"{k}^{D - 1} prefixes are too many to find the least of; choose fewer types or less depth")
    u = layer.contributions()
    pairs = torch.empty(D - 1, D, k, k, dtype=torch.float64)
    prefixes = torch.empty(D - 1, k, dtype=torch.float64)
    for d, j in product(range(1, D), range(k)):
        own = u[close_symbol(language, j, d)]
        for depth, i in product(range(1, D + 1), range(k)):
            pair = own[open_symbol(language, i, depth)] + own[close_symbol(language, i, depth - 1)]
            pairs[d - 1, depth - 1, i, j] = torch.linalg.vector_norm(pair)
        prefixes[d - 1, j] = _least_prefix(language, own, d, j)
    quotients = pairs / prefixes[:, None, None, :].clamp_min(1e-300)
    return Balance(
        float(quotients.mean()), float(quotients.max()), condition_gap(language, layer.scores), pairs, prefixes
    )


def _least_prefix(language: Dyck, own: Float[Tensor, "key d"], d: int, j: int) -> Tensor:
    """Return P_{d,j}: with the prefix of least ‖Q‖, the least ‖Q‖ of those with another last bracket."""
    k = language.types
    common = own[0] + own[open_symbol(language, j, d + 1)] + own[close_symbol(language, j, d)]
    sums = common[None]
    for depth in range(1, d + 1):
        step = torch.stack([own[open_symbol(language, kind, depth)] for kind in range(k)])
        sums = (sums[:, None] + step).flatten(0, 1)
    # The last bracket's type changes fastest.
    norms = torch.linalg.vector_norm(sums, dim=1).view(-1, k).amin(0)
    return norms.sort().values[1]


def condition_gap(language: Dyck, scores: Float[Tensor, "query key"]) -> float:
    """Return the largest deviation from the balance condition (Eq. 11), in logits.

        (e(τ_{2i−1,d'}) − e(τ_{2i,d'−1}))ᵀ W_Kᵀ W_Q (e(τ_{2j₁,d₁}) − e(τ_{2j₂,d₂})) = 0

    for all matching pairs (i, d') and closing brackets (j₁, d₁), (j₂, d₂): the difference of a pair's logits is the
    same whichever closing bracket of depth 1 to D − 1 looks at it.
    """
    k, D = language.types, language.max_depth
    queries = [close_symbol(language, j, d) for j in range(k) for d in range(1, D)]
    gap = 0.0
    for i, depth in product(range(k), range(1, D + 1)):
        one, other = open_symbol(language, i, depth), close_symbol(language, i, depth - 1)
        difference = scores[queries, one] - scores[queries, other]
        gap = max(gap, float(difference.max() - difference.min()))
    return gap
