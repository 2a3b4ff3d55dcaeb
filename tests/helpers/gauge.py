"""How many changes of W_Q and W_K leave all weights, or all outputs, of a text as they are: formulas by sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from identilens.measures.attention.realisable.softmax_map import free_rank, nested_rank


@dataclass(frozen=True, kw_only=True)
class KeyGroup:
    """Sizes of query heads that share keys, with q_i = R_i W_Q x_i and k_j = R_j W_K x_j for generic x, W_Q and W_K.

    R_i turns pairs of coordinates by angles proportional to the position (Su et al. 2021). The numbers below are exact
    for generic tensors: they were found by counting, and agree with the ranks of Jacobians (docs/alternatives.md).

    Attributes:
        counts: Number m_i of keys that each query sees; the visible sets must be nested.
        ranks: r_i = rank([V, 1]) − 1 over these keys.
        heads: H, the number of query heads.
        plain: p, the number of coordinates that are not turned.
        turned: For each frequency, the number of pairs that are turned by it.
        query_inputs: D_Q, the size of x where queries are made, plus 1 with a bias.
        key_inputs: D_K, the size of x where keys are made, plus 1 with a bias.
        key_bias: Whether keys have a bias.
    """

    counts: Sequence[int]
    ranks: Sequence[int]
    heads: int = 1
    plain: int = 0
    turned: Sequence[int] = ()
    query_inputs: int
    key_inputs: int
    key_bias: bool = False

    @property
    def d_k(self):
        """Size of a query: p + 2 Σ μ."""
        return self.plain + 2 * sum(self.turned)

    @property
    def parameters(self):
        """d_k (H D_Q + D_K): the entries of the W_Q and W_K, biases included."""
        return self.d_k * (self.heads * self.query_inputs + self.key_inputs)

    @property
    def commutant(self):
        """Dimension of the gauge on long texts: p² + 2 Σ μ², plus p if keys have a bias.

        A change W_Q → Gᵀ W_Q, W_K → G⁻¹ W_K changes no logit if G commutes with every R_i: an invertible matrix of the
        plain coordinates and a complex one of the pairs of each frequency. A constant may be added to plain keys.
        """
        return (
            self.plain**2 + 2 * sum(count**2 for count in self.turned) + self.plain * self.key_bias
        )

    @cached_property
    def weights_rank(self):
        """In how many directions the weights of all heads can move."""
        return self._reached[-1]

    @property
    def gauge(self):
        """Dimension of the changes that change no weight on this text."""
        return self.parameters - self.weights_rank

    @cached_property
    def kernel(self):
        """Dimension of the changes that change no output of a head on this text, to first order."""
        return self.parameters - nested_rank(
            self._reached, [self.heads * rank for _, rank in self._rows]
        )

    @property
    def dimension(self):
        """Local dimension of the alternatives that other parameters give: kernel − gauge."""
        return self.kernel - self.gauge

    @cached_property
    def _rows(self):
        return sorted(zip(self.counts, self.ranks, strict=True))

    @cached_property
    def _reached(self):
        """In how many directions the weights of the first t rows of every head can move, t from 0."""
        return [
            self._reach([count for count, _ in self._rows[:t]]) for t in range(len(self._rows) + 1)
        ]

    def _reach(self, counts):
        # A row of logits is a linear map of the keys' inputs, and of these once more for each frequency.
        kinds, turned = bool(self.plain), 2 * len(self.turned)
        most = (self.key_inputs - self.key_bias) * kinds + self.key_inputs * turned
        last = self.heads * self.query_inputs * (kinds + turned)
        stacked = [min(count, most + 1) for count in counts for _ in range(self.heads)][-last:]
        reached = free_rank(stacked, self.d_k)
        if counts and self.heads * len(counts) >= self.d_k < counts[-1]:
            reached = min(reached, self.parameters - self._undone(len(counts), counts[-1]))
        return min(self.heads * sum(count - 1 for count in counts), reached)

    def _undone(self, queries, keys):
        """Return the gauge on a text of so many queries and keys without a mask.

        If Q and the centred K have full column rank, it is the set of d_k x d_k matrices G, and constants, for which
        both Q G and K Gᵀ + constants are again made by parameters, and what the inputs do not reach.
        """
        d_k, more = self.d_k, self.heads * max(0, queries - self.query_inputs)
        over = max(0, keys - self.key_inputs)
        blocks = [(2 * count, count, count) for count in self.turned]
        blocks.append((self.plain, self.plain, self.plain + self.key_bias))
        of_queries = sum(size * max(least, d_k - more) for size, least, _ in blocks)
        of_keys = sum(size * max(least, d_k + 1 - over) for size, _, least in blocks)
        unused = self.heads * max(0, self.query_inputs - queries) + max(0, self.key_inputs - keys)
        return max(self.commutant, of_queries + of_keys - d_k * d_k) + d_k * unused
