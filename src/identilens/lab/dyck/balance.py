"""The balance condition, and the balance violation of a second layer (Wen et al. 2023, Eq. 11 to 18)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.lab.dyck.embeddings import pair_symbols
from identilens.lab.dyck.language import Dyck


class SecondLayer(NamedTuple):
    """Attention of one head after a minimal first layer; symbols are numbered as in `embeddings.symbols`.

    Attributes:
        scores: Logits of the attention.
        values: W_V e(τ), with the projection of the head output.
    """

    scores: Float[Tensor, "query key"]
    values: Float[Tensor, "symbol d"]


def second_layer(
    embeddings: Float[Tensor, "symbol d_in"], *weights: Float[Tensor, "_ d_in"]
) -> SecondLayer:
    """Return a second layer from W_Q, W_K and W_V, in float64: scores (W_Q e)·(W_K e')/√d_k, values W_V e'.

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck.balance import second_layer
        >>> second_layer(torch.eye(8), torch.zeros(4, 8), torch.zeros(4, 8), torch.ones(4, 8)).scores.shape
        torch.Size([8, 8])
    """
    query, key, values = (embeddings.double() @ weight.double().T for weight in weights)
    return SecondLayer(query @ key.T * query.shape[1] ** -0.5, values)


@dataclass(frozen=True, eq=False)
class Balance:
    """The balance violation of a layer.

    Attributes:
        violation: Mean of S_{d,d',i,j}/P_{d,j} over all d, d', i, j: the balance violation β (section 4.2).
        largest_violation: The largest quotient.
        condition: Largest deviation from Eq. 11, in attention logits (`condition_gap`).
    """

    violation: float
    largest_violation: float
    condition: float


def measure_balance(language: Dyck, layer: SecondLayer) -> Balance:
    """Return the balance violation of a second layer.

    For a closing bracket τ_{2j,d} as query and a matching pair of type i whose open bracket has depth d',

        S_{d,d',i,j} = ‖u(τ_{2j,d}, τ_{2i−1,d'}) + u(τ_{2j,d}, τ_{2i,d'−1})‖   (Eq. 15)

    is what the pair adds to the output. Q(t) is the output after the start token, d open brackets of types t and an
    adjacent pair of type j (Eq. 16). Let t be the prefix of least ‖Q‖, and t' the prefix of least ‖Q‖ among those with
    another last bracket. Then P_{d,j} = ‖Q(t')‖ (Eq. 17), the larger of the two. The model must distinguish both, so
    that S cannot be much larger than P/N on length N (Theorem 2). Queries have depth 1 to D − 1: after others no
    bracket is open, or no bracket can have been closed. There are k^d prefixes for each query of depth d. With one
    type or depth 1 nothing is to be distinguished.

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck import Dyck, measure_balance
        >>> from identilens.lab.dyck.balance import second_layer
        >>> language, generator = Dyck(types=2, max_depth=2), torch.Generator().manual_seed(0)
        >>> query, key, value = torch.randn(3, 4, 9, generator=generator)
        >>> result = measure_balance(language, second_layer(torch.eye(9), query, key, value))
        >>> result.violation > 0
        True
    """
    pairs, prefixes = pair_sizes(language, layer)
    quotients = pairs / prefixes[:, None, None].clamp_min(1e-300)
    gap = condition_gap(language, layer.scores)
    return Balance(quotients.mean().item(), quotients.max().item(), gap)


def pair_sizes(
    language: Dyck, layer: SecondLayer
) -> tuple[Float[Tensor, "d pair_depth kind query_kind"], Float[Tensor, "d query_kind"]]:
    """Return S_{d,d',i,j} (Eq. 15) at [d − 1, d' − 1, i, j], and P_{d,j} (Eq. 17) at [d − 1, j].

    They are computed from u(τ_q, τ_k) = P_⊥ exp(score) W_V e(τ_k) (Eq. 12), divided by the query's largest exp(score).
    P_⊥ is what the LayerNorm after the attention uses. The scale cancels in every quotient S/P, and prevents an
    overflow of exp.
    """
    opens, closes = pair_symbols(language)
    centred = layer.values - layer.values.mean(1, keepdim=True)
    scores = layer.scores[closes[:, 1:].T]
    u = (scores - scores.amax(-1, keepdim=True)).exp()[..., None] * centred
    matched = u[:, :, opens] + u[:, :, closes]
    prefixes = []
    for d, outputs in enumerate(u):
        sums = (outputs[:, 0] + matched[d].diagonal()[d + 1].T)[:, None]
        for depth in range(d + 1):
            sums = (sums[:, :, None] + outputs[:, None, opens[:, depth]]).flatten(1, 2)
        # The last bracket's type changes fastest.
        norms = torch.linalg.vector_norm(sums, dim=-1).unflatten(1, (-1, language.types))
        prefixes.append(norms.amin(1).sort().values[:, 1])
    pairs = torch.linalg.vector_norm(matched, dim=-1).permute(0, 3, 2, 1)
    return pairs, torch.stack(prefixes)


def condition_gap(language: Dyck, scores: Float[Tensor, "query key"]) -> float:
    """Return the largest deviation from the balance condition (Eq. 11), in logits.

        (e(τ_{2i−1,d'}) − e(τ_{2i,d'−1}))ᵀ W_Kᵀ W_Q (e(τ_{2j₁,d₁}) − e(τ_{2j₂,d₂})) = 0

    for all matching pairs (i, d') and closing brackets (j₁, d₁), (j₂, d₂): the difference of a pair's logits is the
    same for every closing bracket of depth 1 to D − 1 as query.
    """
    opens, closes = pair_symbols(language)
    logits = scores[closes[:, 1:].flatten()]
    differences = logits[:, opens] - logits[:, closes]
    return (differences.amax(0) - differences.amin(0)).max().item() if len(logits) else 0.0
