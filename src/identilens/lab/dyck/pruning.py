"""Pruning of larger random transformers to a target (Wen et al. 2023, Theorem 3, Lemmas 2 to 10)."""

from collections.abc import Sequence
from itertools import product

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from identilens.lab.drawing import seeded, uniforms
from identilens.lab.dyck.plain import PlainLayer, drawn_layers

_FAR = 3
"""Products of the largest size that are searched for each weight."""


def closest_subsets(
    values: Float[Tensor, "case number"], targets: Float[Tensor, " case"]
) -> Bool[Tensor, "case number"]:
    """Return, for each case, the subset of its numbers whose sum is nearest to its target.

    Exact, by meeting in the middle: the sums of all subsets of one half are sorted, and each sum of the other half is
    completed by the nearest. For n numbers uniform on [−1, 1] the distance decreases about as 2^{-n} (Pensia et al.
    2020). Cost O(2^{n/2} n) per case, in time and memory.
    """
    count = values.shape[1]
    half = count // 2
    left, right = _choices(half), _choices(count - half)
    lower = values[:, :half] @ left.double().T
    upper, order = (values[:, half:] @ right.double().T).sort(1)
    missing = targets[:, None] - lower
    above = torch.searchsorted(upper, missing).clamp(1, upper.shape[1] - 1)
    places = torch.cat([above - 1, above], 1)
    best = (upper.gather(1, places) - missing.repeat(1, 2)).abs().argmin(1, keepdim=True)
    index = order.gather(1, places.gather(1, best))
    return torch.cat([left[best % len(left)], right[index]], 2)[:, 0]


def _choices(count: int) -> Bool[Tensor, "subset number"]:
    """Return every subset of ``count`` numbers."""
    return (torch.arange(2**count)[:, None] >> torch.arange(count)) % 2 == 1


def random_transformer(
    candidates: int, size: int, width: int, layers: int, seed: int
) -> list[PlainLayer]:
    """Return Theorem 3's random transformer: layers with a 4-layer g, every weight uniform on [−1, 1].

    It is large enough for a target with embeddings of size m and a g of width w, if each of its weights is a sum of
    some of ``candidates`` random products: m coordinates for X, m times the candidates for values and as many for the
    attention's output (Lemma 9); twice the candidates for each entry of W_Kᵀ W_Q (Lemma 7), and for each sign of each
    input of g or of a linear map (Lemma 6).

    Args:
        candidates: Number of random products from which each weight of the target is summed.
        size: m, the embedding size of the target.
        width: w, the width of the target's g.
        layers: Number of random layers.
        seed: Seed of the weights.
    """
    generator = seeded(seed)
    embedding = size + 2 * candidates * size
    projection = 4 * candidates * max(2 * size, width)
    return drawn_layers(
        lambda *shape: 2 * uniforms(generator, *shape) - 1,
        layers,
        2 * candidates * size**2,
        (embedding, projection, projection, projection, embedding),
    )


def prune_to(
    target: Sequence[PlainLayer], large: Sequence[PlainLayer], candidates: int
) -> list[PlainLayer]:
    """Return the random layers with some weights set to zero, and no other change, so that they compute the target.

    Two adjacent layers compute one layer of the target; all other layers compute the identity. The first of the two has
    no attention. Its g passes X on, and writes P_⊥ W_V X, divided by the second layer's value weights, to other
    coordinates. The second layer's W_Kᵀ W_Q is summed from random products (Lemma 7). Its W_V keeps one large entry per
    coordinate, in rows and columns without other use (Lemma 9), so that its norm has the same input as the target's
    (Lemma 12). Its g sums the target's g (Lemma 6). The g of the target has two linear maps. The first layer is the
    identity for every target (Corollary 3).
    """
    identity = torch.eye(len(target[0][2])).double()
    pruned = [_linear_pruning(layer, identity, candidates) for layer in large]
    for number, layer in enumerate(target):
        pair = slice(2 * number + 1, 2 * number + 3)
        pruned[pair] = _pair(layer, *large[pair], candidates=candidates)
    return pruned


def _pair(
    target: PlainLayer, earlier: PlainLayer, later: PlainLayer, candidates: int
) -> tuple[PlainLayer, PlainLayer]:
    target_query, target_key, target_value, inner, outer = target
    m, size = len(target_value), len(later[2])
    rows, columns = _large_entries(later[2], m)
    kept = later[2][rows, columns]
    # The value in a column is divided by the column's entry of the pruned value matrix; the result is in its row.
    carry = torch.eye(size, m).double()
    centred = target_value - target_value.mean(0)
    carry[columns] = centred / kept[:, None]
    # The norm's output is in the rows, X in the first coordinates: g reads their sum.
    reading = pad(inner, (0, size - m))
    reading[:, rows] = inner
    value = torch.zeros_like(later[2]).index_put((rows, columns), kept)
    attention = _key_pruning(later, target_key.T @ target_query, candidates)
    projection = _relu_pruning(later, reading, outer, candidates)
    return _linear_pruning(earlier, carry, candidates), (*attention, value, *projection)


def _large_entries(value: Tensor, m: int) -> Int[Tensor, "2 m"]:
    """Return rows and columns of m large entries of W_V, no two in a row or column (Lemma 9)."""
    spare = (len(value) - m) // 2
    left = value[m + spare :, m : m + spare].abs()
    cells = []
    for _ in range(m):
        row, column = divmod(int(left.argmax()), spare)
        left[row] = left[:, column] = -1.0
        cells.append((m + spare + row, m + column))
    return torch.tensor(cells).T


def _key_pruning(
    layer: PlainLayer, target: Float[Tensor, "m m"], candidates: int
) -> tuple[Tensor, Tensor]:
    """Return W_Q and W_K pruned so that W_Kᵀ W_Q is close to a target matrix on the first coordinates (Lemma 7)."""
    query, key = layer[:2]
    rows = torch.arange(len(key)).view(target.numel(), -1)
    cells = torch.arange(target.numel())[:, None]
    keys, queries = (rows, cells // len(target)), (rows, cells % len(target))
    chosen = _chosen(key[keys] * query[queries], target.flatten(), candidates)
    zero = torch.zeros_like(key)
    return (
        zero.index_put(queries, query[queries] * chosen),
        zero.index_put(keys, key[keys] * chosen),
    )


def _linear_pruning(
    layer: PlainLayer, target: Float[Tensor, "out m"], candidates: int
) -> PlainLayer:
    """Return a layer pruned to a linear map: no attention, g a 2-layer ReLU network, x = relu(x) − relu(−x)."""
    identity = torch.eye(target.shape[1]).double()
    signs, parts = torch.cat([identity, -identity]), torch.cat([target, -target], 1)
    return (*map(torch.zeros_like, layer[:3]), *_relu_pruning(layer, signs, parts, candidates))


def _relu_pruning(
    layer: PlainLayer, inner: Tensor, outer: Tensor, candidates: int
) -> tuple[Tensor, ...]:
    """Return the 4-layer g pruned to the 2-layer network outer · relu(inner · x) (Lemma 6)."""
    first, second, third, fourth = layer[3:]
    lower = _sum_pruning(first, second, inner, candidates, (1, -1))
    return (*lower, *_sum_pruning(third, fourth, outer, candidates, (1,)))


def _sum_pruning(
    first: Tensor,
    second: Tensor,
    target: Float[Tensor, "out used"],
    candidates: int,
    signs: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return two random matrices pruned so that second · relu(first · x) is close to target · x (Lemma 2).

    Each input has its own block of hidden units. Units with a positive weight are used for its positive values, the
    others for its negative values. Each entry of the target, for each sign, is a sum of at most ``candidates`` of their
    products. The outputs are the first coordinates. ``signs`` are those that inputs can have.
    """
    outputs = second[: len(target)]
    used = target.any(0).nonzero()[:, 0]
    blocks = torch.arange(len(first)).split(len(first) // len(used))
    pruned_first, pruned_second = torch.zeros_like(first), torch.zeros_like(second)
    for (source, units), sign in product(zip(used, blocks, strict=False), signs):
        serving = units[sign * first[units, source] > 0]
        pruned_first[serving, source] = first[serving, source]
        weights = outputs[:, serving]
        chosen = _chosen(weights * first[serving, source], target[:, source], candidates)
        pruned_second[: len(target), serving] = weights * chosen
    return pruned_first, pruned_second


def _chosen(
    products: Float[Tensor, "case product"], targets: Float[Tensor, " case"], candidates: int
) -> Bool[Tensor, "case product"]:
    """Return which products are summed in each case.

    The search uses the few products that are largest in the direction of the target, so that the sum can reach it, and
    the first of the others.
    """
    largest = (products * targets.sign()[:, None]).argsort(1, descending=True)
    far = largest[:, : min(_FAR, candidates)]
    order = torch.ones_like(products).scatter(1, far, 0.0).argsort(dim=1, stable=True)
    searched = order[:, :candidates]
    subsets = closest_subsets(products.gather(1, searched), targets)
    return torch.zeros_like(products, dtype=torch.bool).scatter(1, searched, subsets)
