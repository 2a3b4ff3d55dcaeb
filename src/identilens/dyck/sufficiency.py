"""Theorem 1's sufficiency as explicit weights: a balanced second layer that generates Dyck of any length."""

from dataclasses import dataclass
from itertools import product
from math import log

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.dyck.balance import condition_gap
from identilens.dyck.configuration import DyckConfig
from identilens.dyck.embeddings import close_symbol, open_symbol, symbols
from identilens.dyck.language import SPECIAL, Dyck
from identilens.dyck.modeling import DyckForCausalLM
from identilens.errors import InputError

IMPOSSIBLE = 40.0
"""Logits below the possible tokens' by this much: a probability of 4e-18."""

_BALANCED = 1e-8

_ROUNDING = 1e-10
"""C_LN. The theorem has 0; where all brackets are matched the norm would then blow rounding errors up to length one."""


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Weights of one layer of the paper's block (Eq. 6) and of a head behind it.

    Attributes:
        q: W_Q.
        k: W_K.
        v: W_V.
        projection: Weight and bias of each linear layer of g.
        head: W_Head, of the last layer.
    """

    q: Float[Tensor, "d_k d"]
    k: Float[Tensor, "d_k d"]
    v: Float[Tensor, "d d"]
    projection: list[tuple[Tensor, Tensor]]
    head: Float[Tensor, "token d"] | None = None

    @property
    def widths(self) -> list[int]:
        """Hidden widths of g."""
        return [len(bias) for _, bias in self.projection[:-1]]

    @torch.no_grad()
    def put_into(self, model: DyckForCausalLM, number: int) -> None:
        """Copy the weights into a layer of a model, and the head where there is one."""
        layer = f"dyck.layers.{number}"
        named = {f"{layer}.attention.{part}_proj.weight": getattr(self, part) for part in ("q", "k", "v")}
        for place, (weight, bias) in enumerate(self.projection):
            named[f"{layer}.projection.layers.{place}.weight"] = weight
            named[f"{layer}.projection.layers.{place}.bias"] = bias
        if self.head is not None:
            named["lm_head.weight"] = self.head
        for name, source in named.items():
            model.get_parameter(name).copy_(source)


def balanced_scores(language: Dyck, spread: float, generator: torch.Generator) -> Float[Tensor, "query key"]:
    """Return random attention logits that satisfy the balance condition (Eq. 11), [query symbol, key symbol].

    Uniform in ±spread, but for the logits of closing keys seen from closing queries: they follow their partner's, at a
    distance that is drawn once for each matching pair.
    """
    size = symbols(language)
    scores = (2 * torch.rand(size, size, dtype=torch.float64, generator=generator) - 1) * spread
    k, D = language.types, language.max_depth
    queries = [close_symbol(language, j, d) for j in range(k) for d in range(D)]
    for i, depth in product(range(k), range(1, D + 1)):
        shift = (2 * float(torch.rand((), dtype=torch.float64, generator=generator)) - 1) * spread
        one, other = open_symbol(language, i, depth), close_symbol(language, i, depth - 1)
        scores[queries, other] = scores[queries, one] + shift
    return scores


def sufficient_model(
    language: Dyck, embeddings: Float[Tensor, "symbol d"], scores: Float[Tensor, "query key"], *, seed: int = 0
) -> DyckForCausalLM:
    """Return the transformer that Theorem 1 constructs behind a minimal first layer with the given embeddings.

    It predicts the next token's law at every prefix of every length, whatever the attention logits are, as long as they
    satisfy the balance condition (Eq. 11). In float64.

    Args:
        language: Dyck_{k,D}.
        embeddings: e(τ) of every symbol, linearly independent.
        scores: Attention logits that the layer is to have.
        seed: Of the directions that stand for brackets.

    Raises:
        InputError: For dependent embeddings, or logits off balance.
    """
    gap = condition_gap(language, scores)
    if gap > _BALANCED * max(1.0, float(scores.abs().max())):
        raise InputError(
            f"expected attention logits that satisfy the balance condition (Eq. 11); a matching pair's difference "
            f"changes by up to {gap:.3g} between closing brackets. Take them from balanced_scores"
        )
    e = embeddings.double()
    layer = balanced_layer(language, e, scores, random_directions(language, e.shape[1], seed))
    config = DyckConfig(
        bracket_types=language.types,
        max_depth=language.max_depth,
        open_probability=language.open_probability,
        hidden_size=e.shape[1],
        key_size=e.shape[1],
        num_hidden_layers=1,
        block="paper",
        first_layer="given",
        projection_widths=[layer.widths],
        projection_residual=False,
        norm_constant=_ROUNDING,
    )
    model = DyckForCausalLM(config).double().eval()
    with torch.no_grad():
        model.get_buffer("dyck.embeddings.symbol_table").copy_(e)
    layer.put_into(model, 0)
    return model


def random_directions(language: Dyck, size: int, seed: int) -> Float[Tensor, "bracket d"]:
    """Return k D orthonormal vectors orthogonal to the vector of ones (Lemma 16), one for each open bracket."""
    drawn = torch.randn(size, language.types * language.max_depth, dtype=torch.float64, generator=_seeded(seed))
    return torch.linalg.qr(drawn - drawn.mean(0))[0].T


def balanced_layer(
    language: Dyck,
    embeddings: Float[Tensor, "symbol d"],
    scores: Float[Tensor, "query key"],
    directions: Float[Tensor, "bracket d"],
) -> LayerWeights:
    """Return the second layer of Theorem 1's proof (C.1).

    W_V takes the open bracket (i, d) to its direction o_{i,d}, and its partner to −exp(c_{i,d}) o_{i,d}, c the
    difference of their logits (Eq. 27, 28): matching pairs cancel, what is left lies along the unmatched brackets
    (Eq. 33). g reads the last token and its depth off the part of LN(·) + X orthogonal to all o, then the stack off
    the rest, then the top of the stack at that depth.

    Args:
        language: Dyck_{k,D}.
        embeddings: e(τ), linearly independent.
        scores: Balanced attention logits.
        directions: o_{i,d} by type and depth, orthonormal and orthogonal to the ones.

    Raises:
        InputError: If the embeddings are linearly dependent, or cannot be told apart off the directions.
    """
    count, size = embeddings.shape
    k, D = language.types, language.max_depth
    if int(torch.linalg.matrix_rank(embeddings)) < count:
        raise InputError(
            f"expected {count} linearly independent embeddings, one a symbol, got {size} dimensions of rank "
            f"{int(torch.linalg.matrix_rank(embeddings))}; add dimensions"
        )
    inverse = torch.linalg.pinv(embeddings)
    wanted = torch.zeros(count, size, dtype=torch.float64)
    query = close_symbol(language, 0, min(1, D - 1))
    for i, depth in product(range(k), range(1, D + 1)):
        one, other = open_symbol(language, i, depth), close_symbol(language, i, depth - 1)
        wanted[one] = directions[i * D + depth - 1]
        wanted[other] = -torch.exp(scores[query, one] - scores[query, other]) * wanted[one]
    least = _least_share(language, scores)
    return LayerWeights(
        torch.eye(size, dtype=torch.float64),
        size**0.5 * inverse @ scores @ inverse.T,
        (inverse @ wanted).T,
        _reading_projection(language, embeddings, directions, least),
        _head(language, size),
    )


def _least_share(language: Dyck, scores: Tensor) -> float:
    """Return the least coordinate of an unmatched bracket's direction behind the LayerNorm."""
    k, D = language.types, language.max_depth
    opens = [open_symbol(language, i, d) for i in range(k) for d in range(1, D + 1)]
    queries = [close_symbol(language, j, d) for j in range(k) for d in range(D)]
    seen = scores[queries][:, opens]
    return float((seen.amin(1) - seen.amax(1)).exp().min()) / D**0.5


def _reading_projection(
    language: Dyck, embeddings: Tensor, directions: Tensor, least: float
) -> list[tuple[Tensor, Tensor]]:
    """Return g: from LN(output) + e(τ) to the top of the stack, in four linear layers with ReLU between them."""
    count, size = embeddings.shape
    k, D = language.types, language.max_depth
    brackets = k * D
    code = _code(embeddings, directions)
    places = embeddings @ code
    order = places.argsort()
    middles = (places[order][1:] + places[order][:-1]) / 2
    halves = (places[order][1:] - places[order][:-1]) / 2
    # First: two units a step between neighbouring codes, and the brackets' directions with either sign.
    steps = code.expand(count - 1, -1) / halves[:, None]
    first = torch.cat([steps, steps, directions, -directions])
    first_bias = torch.cat([0.5 - middles / halves, -0.5 - middles / halves, torch.zeros(2 * brackets).double()])
    # One symbol is a step up and the next step down; the last has no step down, the first no step up.
    symbol = torch.zeros(count, len(first), dtype=torch.float64)
    symbol_bias = torch.zeros(count, dtype=torch.float64)
    for place, one in enumerate(order.tolist()):
        for step, sign in ((place - 1, 1.0), (place, -1.0)):
            if 0 <= step < count - 1:
                symbol[one, step] += sign
                symbol[one, count - 1 + step] -= sign
        symbol_bias[one] = 1.0 if place == 0 else 0.0
    # Second: the symbols, and for each bracket two units of a step at half the least share it has when unmatched.
    share = torch.zeros(brackets, len(first), dtype=torch.float64)
    share[:, 2 * (count - 1) : 2 * (count - 1) + brackets] = torch.eye(brackets)
    share[:, 2 * (count - 1) + brackets :] = -torch.eye(brackets)
    own = directions @ embeddings.T
    share_bias = -own @ symbol_bias
    share = (share - own @ symbol) * 3 / least
    share_bias = share_bias * 3 / least
    second = torch.cat([symbol, share, share])
    second_bias = torch.cat([symbol_bias, share_bias - 1, share_bias - 2])
    return [(first, first_bias), (second, second_bias), *_top_layers(language, len(second), size)]


def _top_layers(language: Dyck, width: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """Return the last two layers of g: which bracket is on top, whether the stack is full, and a constant."""
    k, D = language.types, language.max_depth
    count = symbols(language)
    third = torch.zeros(k * (D - 1) + k + 1, width, dtype=torch.float64)
    third_bias = torch.zeros(len(third), dtype=torch.float64)
    for i, d in product(range(k), range(1, D)):
        unit = i * (D - 1) + d - 1
        third[unit, [close_symbol(language, j, d) for j in range(k)]] = 1.0
        third[unit, count + i * D + d - 1] = 1.0
        third[unit, count + k * D + i * D + d - 1] = -1.0
        third_bias[unit] = -1.0
    for i, d in product(range(k), range(1, D + 1)):
        third[k * (D - 1) + i, open_symbol(language, i, d)] = 1.0
    third[-1, [open_symbol(language, i, D) for i in range(k)]] = 1.0
    last = torch.zeros(size, len(third), dtype=torch.float64)
    for i in range(k):
        last[i, i * (D - 1) : (i + 1) * (D - 1)] = 1.0
        last[i, k * (D - 1) + i] = 1.0
    last[k, -1] = 1.0
    last_bias = torch.zeros(size, dtype=torch.float64)
    last_bias[k + 1] = 1.0
    return [(third, third_bias), (last, last_bias)]


def _head(language: Dyck, size: int) -> Float[Tensor, "token d"]:
    """Return W_Head: log-probabilities of Definition 1, −40 for what cannot come next."""
    k, q = language.types, language.open_probability
    head = torch.zeros(language.vocabulary, size, dtype=torch.float64)
    head[:, k + 1] = -IMPOSSIBLE
    head[SPECIAL : SPECIAL + k, k + 1] = log(q / k)
    head[SPECIAL : SPECIAL + k, k] = -IMPOSSIBLE
    for i in range(k):
        head[language.close(i), i] = IMPOSSIBLE + log(1 - q)
    return head


def _code(embeddings: Tensor, directions: Tensor, tries: int = 2000) -> Float[Tensor, " d"]:
    """Return a vector orthogonal to all directions on which the embeddings have different places (Lemma 15)."""
    off = embeddings - embeddings @ directions.T @ directions
    count = len(off)
    if int(torch.linalg.matrix_rank(off)) == count:
        code = torch.linalg.pinv(off) @ torch.arange(count).double()
        return code - directions.T @ (directions @ code)
    drawn = torch.randn(off.shape[1], tries, dtype=torch.float64, generator=_seeded(0))
    drawn = drawn - directions.T @ (directions @ drawn)
    drawn = drawn / torch.linalg.vector_norm(drawn, dim=0)
    gaps = (off @ drawn).sort(0).values.diff(dim=0).amin(0)
    best = int(gaps.argmax())
    if float(gaps[best]) < 1e-6:
        raise InputError("the embeddings cannot be told apart off the brackets' directions; add dimensions")
    return drawn[:, best]


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
