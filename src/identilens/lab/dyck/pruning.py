"""Pruning of larger random transformers to a target (Wen et al. 2023, Theorem 3, Lemmas 2 to 10)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

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
    above = torch.searchsorted(upper, missing).clamp_max(upper.shape[1] - 1)
    places = torch.cat([(above - 1).clamp_min(0), above], 1)
    best = (upper.gather(1, places) - missing.repeat(1, 2)).abs().argmin(1, keepdim=True)
    index = order.gather(1, places.gather(1, best))[:, 0]
    return torch.cat([left[best[:, 0] % len(left)], right[index]], 1)


def _choices(count: int) -> Bool[Tensor, "subset number"]:
    """Return every subset of ``count`` numbers."""
    return (torch.arange(2**count)[:, None] >> torch.arange(count)) % 2 == 1


@dataclass(frozen=True)
class Sizes:
    """Sizes of the random transformer that is pruned to a target.

    Attributes:
        candidates: Number of random products from which each weight of the target is summed.
        size: m, the embedding size of the target.
        width: w, the width of the target's g.
    """

    candidates: int
    size: int
    width: int

    @property
    def spare(self) -> int:
        """Number of coordinates for values, and also of coordinates for the attention's output (Lemma 9)."""
        return self.candidates * self.size

    @property
    def embedding(self) -> int:
        """Embedding size of the random transformer."""
        return self.size + 2 * self.spare

    @property
    def key_size(self) -> int:
        """Its key size: a block of twice the candidates for each entry of W_Kᵀ W_Q (Lemma 7)."""
        return 2 * self.candidates * self.size**2

    @property
    def projection(self) -> int:
        """Its width of g: twice the candidates for each sign of each input of g, or of a linear map (Lemma 6)."""
        return 4 * self.candidates * max(2 * self.size, self.width)


def random_transformer(sizes: Sizes, layers: int, seed: int) -> list[PlainLayer]:
    """Return Theorem 3's random transformer: layers with a 4-layer g, every weight uniform on [−1, 1]."""
    generator = seeded(seed)

    def draw(rows: int, columns: int) -> Tensor:
        return 2 * uniforms(generator, rows, columns) - 1

    d, wide = sizes.embedding, sizes.projection
    return drawn_layers(draw, layers, sizes.key_size, (d, wide, wide, wide, d))


def prune_to(
    target: Sequence[PlainLayer], large: Sequence[PlainLayer], sizes: Sizes
) -> list[PlainLayer]:
    """Return the random layers with some weights set to zero, and no other change, so that they compute the target.

    Two adjacent layers compute one layer of the target; all other layers compute the identity. The first of the two has
    no attention. Its g passes X on, and writes P_⊥ W_V X, divided by the second layer's value weights, to other
    coordinates. The second layer's W_Kᵀ W_Q is summed from random products (Lemma 7). Its W_V keeps one large entry per
    coordinate, in rows and columns without other use (Lemma 9), so that its norm has the same input as the target's
    (Lemma 12). Its g sums the target's g (Lemma 6). The g of the target has two linear maps. The first layer is the
    identity for every target (Corollary 3).
    """
    identity = torch.eye(sizes.size).double()
    pruned = [_linear_pruning(layer, identity, sizes) for layer in large]
    for number, layer in enumerate(target):
        first = 2 * number + 1
        pruned[first : first + 2] = _pair(layer, large[first], large[first + 1], sizes)
    return pruned


def _pair(
    target: PlainLayer, earlier: PlainLayer, later: PlainLayer, sizes: Sizes
) -> tuple[PlainLayer, PlainLayer]:
    m = sizes.size
    target_query, target_key, target_value, inner, outer = target
    value, rows, columns = _value_pruning(later[2], sizes)
    # The value in a column is divided by the column's entry of the pruned value matrix; the result is in its row.
    carry = torch.zeros(sizes.embedding, m, dtype=torch.float64)
    carry[:m] = torch.eye(m)
    centred = target_value - target_value.mean(0)
    carry[columns] = centred / value[rows, columns][:, None]
    query, key = _key_pruning(later, target_key.T @ target_query, sizes)
    # The norm's output is in the rows, X in the first coordinates: g reads their sum.
    reading = torch.zeros(len(inner), sizes.embedding, dtype=torch.float64)
    reading[:, :m], reading[:, rows] = inner, inner
    projection = _relu_pruning(later, reading, outer, sizes)
    return _linear_pruning(earlier, carry, sizes), (query, key, value, *projection)


def _value_pruning(value: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """Return W_V with m large entries kept, no two in a row or column, and their rows and columns (Lemma 9)."""
    m, spare = sizes.size, sizes.spare
    left = value[m + spare :, m : m + spare].abs()
    places = []
    for _ in range(m):
        row, column = divmod(int(left.argmax()), spare)
        left[row], left[:, column] = -1.0, -1.0
        places.append((m + spare + row, m + column))
    rows, columns = torch.tensor(places).T
    pruned = torch.zeros_like(value)
    pruned[rows, columns] = value[rows, columns]
    return pruned, rows, columns


def _key_pruning(
    layer: PlainLayer, target: Float[Tensor, "m m"], sizes: Sizes
) -> tuple[Tensor, Tensor]:
    """Return W_Q and W_K pruned so that W_Kᵀ W_Q is close to a target matrix on the first coordinates (Lemma 7)."""
    rows = torch.arange(len(layer[1])).view(target.numel(), -1)
    cells = torch.arange(target.numel())[:, None]
    keys, queries = (rows, cells // sizes.size), (rows, cells % sizes.size)
    products = layer[1][keys] * layer[0][queries]
    chosen = _chosen(products, target.flatten(), sizes.candidates)
    query, key = torch.zeros_like(layer[0]), torch.zeros_like(layer[1])
    query[queries] = torch.where(chosen, layer[0][queries], 0.0)
    key[keys] = torch.where(chosen, layer[1][keys], 0.0)
    return query, key


def _linear_pruning(layer: PlainLayer, target: Float[Tensor, "out m"], sizes: Sizes) -> PlainLayer:
    """Return a layer pruned to a linear map: no attention, g a 2-layer ReLU network, x = relu(x) − relu(−x)."""
    signs = torch.cat([torch.eye(sizes.size), -torch.eye(sizes.size)]).double()
    projection = _relu_pruning(layer, signs, torch.cat([target, -target], 1), sizes)
    return (*map(torch.zeros_like, layer[:3]), *projection)


def _relu_pruning(
    layer: PlainLayer, inner: Tensor, outer: Tensor, sizes: Sizes
) -> tuple[Tensor, ...]:
    """Return the 4-layer g pruned to the 2-layer network outer · relu(inner · x) (Lemma 6)."""
    first, second, third, fourth = layer[3:]
    lower = _sum_pruning(first, second, inner, sizes.candidates, (1, -1))
    return (*lower, *_sum_pruning(third, fourth, outer, sizes.candidates, (1,)))


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
    outputs = len(target)
    used = target.any(0).nonzero()[:, 0].tolist()
    block = len(first) // len(used)
    pruned_first, pruned_second = torch.zeros_like(first), torch.zeros_like(second)
    for number, source in enumerate(used):
        units = torch.arange(number * block, (number + 1) * block)
        for sign in signs:
            serving = units[sign * first[units, source] > 0]
            pruned_first[serving, source] = first[serving, source]
            products = second[:outputs, serving] * first[serving, source]
            chosen = _chosen(products, target[:, source], candidates)
            pruned_second[:outputs, serving] = torch.where(chosen, second[:outputs, serving], 0.0)
    return pruned_first, pruned_second


def _chosen(
    products: Float[Tensor, "case product"], targets: Float[Tensor, " case"], candidates: int
) -> Bool[Tensor, "case product"]:
    """Return which products are summed in each case.

    The search uses the few products that are largest in the direction of the target, so that the sum can reach it, and
    the first of the others.
    """
    count = min(candidates, products.shape[1])
    far = (products * targets.sign()[:, None]).argsort(1, descending=True)[:, : min(_FAR, count)]
    near = torch.ones_like(products).scatter(1, far, 0.0)
    others = near.argsort(dim=1, descending=True, stable=True)
    searched = torch.cat([far, others], 1)[:, :count]
    subsets = closest_subsets(products.gather(1, searched), targets)
    return torch.zeros_like(products, dtype=torch.bool).scatter_(1, searched, subsets)
