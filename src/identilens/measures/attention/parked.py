"""Where a head parks its attention, and the size of its output: sums over blocks of rows, without n x n matrices."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.measures.attention.influence import share_of


@dataclass(frozen=True)
class ParkedAttention:
    """The influence of each head of a layer on one text, and of its sink.

    The sink is the structural key (first position, special token, full stop, comma) that receives most attention.

    Attributes:
        sink: Position of the sink.
        sink_mass: Attention to the sink, mean over queries, in [0, 1].
        sink_norm_share: Norm share of the sink, ‖a_ij t_j‖ / Σ_k ‖a_ik t_k‖ (Kobayashi et al. 2020), mean over queries.
        sink_value_norm: ‖t_j‖ of the sink, divided by the median of ‖t_k‖ over the keys.
        first_mass: Attention to the first key, mean over queries. Scores of sinks and dormant heads are based on it
            (Gu et al. 2025; Barbero et al. 2025; average weight of the first token in Sandoval-Segura et al. 2025).
        learned_sink: Attention to the learned sink, a key without value, mean over queries; 0 for heads without one.
        output_share: The head's share of the norms of the layer's head outputs after W_O, mean over queries, in
            [0, 1]; 1 / heads for an average head.
    """

    sink: Int[Tensor, " head"]
    sink_mass: Float[Tensor, " head"]
    sink_norm_share: Float[Tensor, " head"]
    sink_value_norm: Float[Tensor, " head"]
    first_mass: Float[Tensor, " head"]
    learned_sink: Float[Tensor, " head"]
    output_share: Float[Tensor, " head"]


class ParkedBuilder:
    """Adds up the rows of a layer's attention block by block; memory O(n · block).

    ``lengths`` are the norms ‖t_k‖ of the projected values, float64. ``structural`` marks the keys that can be sinks,
    text by text; the first key always can. The heads of one text follow one another. ``learned_sink``: the softmax
    has a learned sink, which gets what the rows lack to 1.
    """

    def __init__(
        self, lengths: Float[Tensor, "head key"], structural: Bool[Tensor, "text key"], learned_sink: bool = False
    ) -> None:
        self._learned_sink = learned_sink
        places = structural.to(lengths.device).clone()
        places[:, 0] = True
        self._heads = len(lengths) // len(places)
        self._elsewhere = ~places.repeat_interleave(self._heads, 0)
        self.lengths, (heads, keys) = lengths, lengths.shape
        self._rows, self._output = lengths.new_zeros(2, heads)
        self._sums = lengths.new_zeros(heads, 2, keys)

    def add(self, weights: Float[Tensor, "head row key"], norms: Float[Tensor, "head row"], heads: slice) -> None:
        """Add some rows' weights on all or the first keys, with Σ_k a_ik ‖t_k‖ (`lengths`), of heads of whole texts."""
        self._rows[heads] += weights.shape[1]
        each = torch.stack([torch.ones_like(norms), share_of(torch.ones_like(norms), norms)], 1)
        self._sums[heads, :, : weights.shape[-1]] += each @ weights

    def add_outputs(self, sizes: Float[Tensor, "head row"], heads: slice) -> None:
        """Add the norms of the head outputs of the same rows, after W_O."""
        by_text = sizes.double().unflatten(0, (-1, self._heads))
        self._output[heads] += share_of(by_text, by_text.sum(1, keepdim=True)).sum(-1).flatten()

    def finish(self) -> ParkedAttention:
        """Return the result over all rows added."""
        mass, share = (self._sums / self._rows[:, None, None]).unbind(1)
        place = mass.masked_fill(self._elsewhere, -1.0).argmax(1, keepdim=True)
        norm, count = self.lengths.gather(1, place)[:, 0], self.lengths.shape[1]
        middle = {(count + 1) // 2, count // 2 + 1}
        median = torch.stack([self.lengths.kthvalue(rank, 1).values for rank in middle]).mean(0)
        value_norm = share_of(norm, median)
        mass_there, share_there = (sums.gather(1, place)[:, 0] for sums in (mass, share))
        learned_sink = (1 - mass.sum(1)).clamp_min(0) if self._learned_sink else torch.zeros_like(mass_there)
        return ParkedAttention(
            sink=place[:, 0],
            sink_mass=mass_there,
            sink_norm_share=share_there * norm,
            sink_value_norm=value_norm,
            first_mass=mass[:, 0],
            learned_sink=learned_sink,
            output_share=self._output / self._rows,
        )
