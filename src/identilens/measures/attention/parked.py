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
        output_share: The head's share of the norms of the layer's head outputs after W_O, mean over queries, in
            [0, 1]; 1 / heads for an average head.
    """

    sink: Int[Tensor, " head"]
    sink_mass: Float[Tensor, " head"]
    sink_norm_share: Float[Tensor, " head"]
    sink_value_norm: Float[Tensor, " head"]
    first_mass: Float[Tensor, " head"]
    output_share: Float[Tensor, " head"]


class ParkedBuilder:
    """Adds up the rows of a layer's attention block by block; memory O(n · block).

    ``compact`` are the projected values in a small orthonormal basis, which keeps their norms. ``structural`` marks the
    keys that can be sinks; the first key always can.
    """

    def __init__(self, compact: Float[Tensor, "head key r"], structural: Bool[Tensor, " key"]) -> None:
        places = structural.clone()
        places[0] = True
        self._keys = torch.nonzero(places).flatten().to(compact.device)
        self._norms = torch.linalg.vector_norm(compact, dim=-1)
        self._rows = 0
        self._mass, self._share = (compact.new_zeros(len(compact), len(self._keys)) for _ in range(2))
        self._output = compact.new_zeros(len(compact))

    def add(self, weights: Float[Tensor, "head row key"], outputs: Float[Tensor, "head row r"]) -> None:
        """Add some rows: their weights, and their head outputs in the basis of the compact values."""
        self._rows += weights.shape[1]
        at_keys = weights[:, :, self._keys].double()
        norms = (weights @ self._norms[..., None].to(weights.dtype)).double()
        self._mass += at_keys.sum(1)
        self._share += share_of(at_keys * self._norms[:, None, self._keys], norms).sum(1)
        sizes = torch.linalg.vector_norm(outputs, dim=-1)
        self._output += share_of(sizes, sizes.sum(0)).sum(1)

    def finish(self) -> ParkedAttention:
        """Return the result over all rows added."""
        place = self._mass.argmax(1, keepdim=True)
        sink = self._keys[place]
        median = self._norms.median(1).values
        mass, share = (sums.gather(1, place)[:, 0] / self._rows for sums in (self._mass, self._share))
        value_norm = share_of(self._norms.gather(1, sink)[:, 0], median)
        return ParkedAttention(
            sink[:, 0], mass, share, value_norm, self._mass[:, 0] / self._rows, self._output / self._rows
        )
