"""The measures of an attention layer, from blocks of rows, so that no n x n matrix is in memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.linalg import ProjectedValues
from identilens.linalg.full_rows import FullRows
from identilens.linalg.irregular_rows import IrregularRows
from identilens.linalg.projected import RowProjector
from identilens.linalg.row_sums import ProjectedRows, RowSums
from identilens.linalg.simplex import least_outside
from identilens.measures.attention.influence import share_of

PerHead = Float[Tensor, " head"]
BLOCKS = 48
"""Blocks of neighbouring queries, and of keys, of whose attention means are kept."""

CONSTANT = 1e-12
"""All entries count as equal up to this variance, as a share of the mean square."""


@dataclass
class Block:
    """Some neighbouring rows of some heads of a layer.

    Attributes:
        heads: The heads; of rows that do not all see every key, all of them.
        rows: The rows; of causal rows in order, from the first on.
        weights: Their weights, on all keys or on the keys up to the last row.
        norms: Σ_k a_ik ‖t_k‖ of each row.
        by_type: The weights summed over the keys of each type.
        outputs: Head outputs in the basis of the compact values: of all rows, or of a few, at ``places``.
        places: The rows, counted from the first one, whose outputs are given; None for all.
        back: See `FullRows.sums`; F and further columns.
        reusable: Whether the memory of the weights may be overwritten.
        rebuilt: Effective attention times these further columns: written by `measure_layer`.
    """

    heads: slice
    rows: slice
    weights: Float[Tensor, "head row key"]
    norms: Float[Tensor, "head row"]
    by_type: Float[Tensor, "head row type"]
    outputs: Float[Tensor, "head place r"]
    places: list[int] | None = None
    back: Float[Tensor, "head k column"] | None = None
    reusable: bool = False
    rebuilt: Float[Tensor, "head row more"] | None = None


class Layer(ABC):
    """The heads of a layer on texts of one length, one text's heads after the other's.

    Attributes:
        projected: T of all heads.
        projector: Their projector.
        heads: Number of heads of one text.
        query_types, key_types: The type of each query and each key.
        structural: Keys that can be sinks, by text; the first key always can.
        has_sink: Whether a learned sink takes part in the softmax.
        keeps_maps: Whether raw and effective attention are kept as they are.
        keeps_means: Whether the weights are kept as means over blocks of queries and keys.
    """

    projected: ProjectedValues
    projector: RowProjector
    heads: int
    query_types: Float[Tensor, "head query type"]
    key_types: Float[Tensor, "head key type"]
    structural: Bool[Tensor, "text key"]
    has_sink: bool
    keeps_maps: bool
    keeps_means: bool = False

    @abstractmethod
    def lengths(self) -> Float[Tensor, "head key"]:
        """Return ‖t_k‖ of each key."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Yield the rows of all heads, each once."""


@dataclass(frozen=True)
class LayerMeasures:
    """The measures of each head of a layer. For masked rows, rank and nullity are those of the last row.

    A learned sink counts as one more key that every row sees, with value zero and the weight that its row lacks to 1.
    The sink of the other columns is the structural key (first position, special token, full stop, comma) that receives
    most attention.

    Attributes:
        rank: Numerical rank of T.
        nullity: Number of visible keys minus rank.
        simplex_nullity: Number of visible keys minus rank([T, 1]), the largest of the rows.
        null_share: ‖null‖² / ‖weights‖², in [0, 1]: the part in LN(T), directions without effect on the output.
        simplex_null_share: The same for LN([T, 1]), directions that also keep the sum of the row; at most null_share.
        pearson: Correlation of raw and effective attention over visible entries; NaN when either is constant.
        reconstruction_error: ‖effective T - head output W_O‖ / ‖head output W_O‖, Frobenius.
        sink: Position of the sink.
        sink_mass: Attention to the sink, mean over queries, in [0, 1].
        sink_norm_share: Norm share of the sink, ‖a_ij t_j‖ / Σ_k ‖a_ik t_k‖ (Kobayashi et al. 2020), mean over queries.
        sink_value_norm: ‖t_j‖ of the sink, divided by the median of ‖t_k‖ over the keys.
        first_mass: Attention to the first key, mean over queries. Scores of sinks and dormant heads are based on it
            (Gu et al. 2025; Barbero et al. 2025; average weight of the first token in Sandoval-Segura et al. 2025).
        learned_sink: Attention to the learned sink, a key without value, mean over queries; 0 for heads without one.
        output_share: The head's share of the norms of the layer's head outputs after W_O, mean over queries, in
            [0, 1]; 1 / heads for an average head.
        raw_received: Sum of the weights of all queries of a type on all keys of a type.
        effective_received: The same for effective attention.
        output_norm: Sum over the queries of the norms of the head outputs.
        maps: Raw and effective attention, if they are kept.
        means: If they are kept: attention of a block of neighbouring queries, on average, to each block of keys. Rows
            sum to 1.
    """

    rank: Int[Tensor, " head"]
    nullity: Int[Tensor, " head"]
    simplex_nullity: Int[Tensor, " head"]
    null_share: PerHead
    simplex_null_share: PerHead
    pearson: PerHead
    reconstruction_error: PerHead
    sink: Int[Tensor, " head"]
    sink_mass: PerHead
    sink_norm_share: PerHead
    sink_value_norm: PerHead
    first_mass: PerHead
    learned_sink: PerHead
    output_share: PerHead
    raw_received: Float[Tensor, "head query_type key_type"]
    effective_received: Float[Tensor, "head query_type key_type"]
    output_norm: PerHead
    maps: tuple[Float[Tensor, "head query key"], Float[Tensor, "head query key"]] | None
    means: Float[Tensor, "head queries keys"] | None


def measure_layer(layer: Layer) -> LayerMeasures:
    """Return the measures of a layer's heads, added up over blocks of rows.

    Because effective attention is an orthogonal projection, ‖effective_i‖² = ⟨a_i, effective_i⟩ for each row. So all
    sums follow from the coordinates of the weights in an orthonormal basis of col(T). Products of rows that do not see
    every key are in float64, but those of causal rows where less is enough. Memory O(n · block).
    """
    T, projector, sizes = layer.projected, layer.projector, layer.projector.row_sizes()
    heads, keys = len(T.values), T.keys
    zeros = torch.zeros(12, heads, dtype=torch.float64, device=T.values.device)
    moments, null, error, output, weight = zeros.split([5, 2, 2, 2, 1])
    received = zeros.new_zeros(2, heads, layer.query_types.shape[-1], layer.key_types.shape[-1])
    by_key = zeros.new_zeros(heads, 2, keys)
    entries = (sizes + layer.has_sink).sum().double()
    mean_weight = len(sizes) / entries
    # Where [T, 1] has no more rank than T, the ones do not count as outside col(T).
    full = isinstance(projector, FullRows)
    least = sizes if full else least_outside(sizes, T.tolerance_of)
    adds_rank = T.simplex_nullity < keys - projector.rank if full else least
    adding = torch.zeros(heads, len(sizes), dtype=torch.bool, device=sizes.device)
    kept = KeptMaps(layer)
    for block in layer.blocks():
        here, rows, weights = block.heads, block.rows, block.weights
        ones = torch.ones_like(block.norms)
        both = torch.stack([ones, share_of(ones, block.norms)], 1)
        by_key[here, :, : weights.shape[-1]] += both @ weights
        kept.add(block)
        types = block.by_type, layer.key_types
        found = projector.sums(
            rows, weights, *types, heads=here, overwrite=block.reusable, back=block.back
        )
        counts = adds_rank[here, None] if full else found.sums.outside > least[rows]
        adding[here, rows] = counts
        sums = replace(found.sums, outside=torch.where(counts, found.sums.outside, 0.0))
        sums = sums.with_sink() if layer.has_sink else sums
        moments[:, here] += _around(mean_weight, sums)
        null[:, here] += torch.stack([sums.null_square, sums.simplex_null_square]).sum(-1)
        weight[:, here] += (sums.raw_square + sums.even * (2 * sums.raw + 1)).sum(-1)
        both = torch.stack([block.by_type.double(), found.received])
        received[:, here] += layer.query_types[here, rows].mT @ both
        squares, norms = _outputs(block, found)
        error[:, here] += squares
        norms = norms.unflatten(0, (-1, layer.heads))
        shares = share_of(norms, norms.sum(1, keepdim=True))
        output[:, here] += torch.stack([norms, shares]).sum(-1).flatten(1)
    tiny = torch.finfo(torch.float64).tiny
    null_shares = (null / weight.clamp_min(tiny)).clamp(0, 1)
    return LayerMeasures(
        rank=projector.rank,
        nullity=sizes[-1] + layer.has_sink - projector.rank,
        simplex_nullity=_simplex_nullity(layer, adding),
        null_share=null_shares[0],
        simplex_null_share=null_shares[1],
        pearson=_pearson(moments / entries, mean_weight),
        reconstruction_error=(error[0] / error[1].clamp_min(tiny)).sqrt(),
        **_sinks(layer, by_key / len(sizes)),
        output_share=output[1] / len(sizes),
        raw_received=received[0],
        effective_received=received[1],
        output_norm=output[0],
        maps=kept.maps(),
        means=kept.means,
    )


def _simplex_nullity(layer: Layer, adding: Bool[Tensor, "head query"]) -> Int[Tensor, " head"]:
    """Return the largest simplex nullity of a row; ``adding`` says in which rows the ones add to the rank of T."""
    T, projector = layer.projected, layer.projector
    if not isinstance(projector, IrregularRows):
        return (T.with_sink() if layer.has_sink else T).simplex_nullity
    last = T.restricted(projector.seen(slice(-1, None))[0])
    last = last.with_sink() if layer.has_sink else last
    rows = projector.row_sizes() - projector.row_ranks()
    # A learned sink is one more key, and the ones add to the rank of every row with one.
    rows = rows if layer.has_sink else rows - adding.long()
    return torch.maximum(last.simplex_nullity, rows.amax(-1))


class KeptMaps:
    """What is kept of a layer's maps, added block by block: raw and effective attention, or means of the weights."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._maps: list[tuple[Tensor, Tensor]] = []
        self.means: Tensor | None = None
        if layer.keeps_means:
            queries, keys = layer.query_types.shape[-2], layer.projected.keys
            self._queries, self._keys = members(queries), members(keys)
            size = len(layer.projected.values), len(self._queries), len(self._keys)
            self.means = torch.zeros(size, dtype=torch.float64)

    def add(self, block: Block) -> None:
        """Keep what is asked for of some rows."""
        weights, rows = block.weights, block.rows
        if self._layer.keeps_maps:
            effective = self._layer.projector.effective(rows, weights)
            self._maps.append((weights.clone(), effective.to(weights.dtype)))
        if self.means is not None:
            queries = self._queries[:, rows] / self._queries.sum(-1, keepdim=True)
            keys = self._keys[:, : weights.shape[-1]].mT
            means = queries.to(weights) @ (weights @ keys.to(weights))
            self.means[block.heads] += means.double().cpu()

    def maps(self) -> tuple[Tensor, Tensor] | None:
        """Return all rows of raw and effective attention, if they are kept."""
        if not self._maps:
            return None
        raw, effective = (torch.cat(parts, 1) for parts in zip(*self._maps, strict=True))
        return raw, effective


def members(tokens: int) -> Float[Tensor, "block token"]:
    """Return which of so many tokens is in which block of neighbours: at most `BLOCKS` of about the same size."""
    blocks = min(BLOCKS, tokens)
    return torch.eye(blocks)[:, torch.arange(tokens) * blocks // tokens]


def _outputs(block: Block, found: ProjectedRows) -> tuple[Tensor, Tensor]:
    """Return ‖rebuilt − given‖² and ‖given‖² of each head, and the norm of each row's output."""
    rebuilt, block.rebuilt = found.rebuilt.tensor_split([block.outputs.shape[-1]], -1)
    if block.places is None:
        outputs, compared, given = block.outputs, rebuilt, block.outputs[:, found.places]
    else:
        outputs, compared, given = rebuilt, rebuilt[:, block.places], block.outputs
    lengths = [torch.linalg.vector_norm(rows, dim=-1) for rows in (compared - given, given)]
    squares = torch.stack(lengths).double().square().sum(-1)
    return squares, torch.linalg.vector_norm(outputs, dim=-1).double()


def _around(mean: Float[Tensor, ""], sums: RowSums) -> Float[Tensor, "5 head"]:
    """Return sums over rows around the mean weight of the whole map: of w, e, w², e², w e.

    For rows that see every key the shift is rounding.
    """
    size, shift = 1 / sums.even, sums.even - mean
    moved = [
        sums.raw + size * shift,
        sums.effective + size * shift,
        sums.raw_square + shift * (2 * sums.raw + size * shift),
        sums.effective_square + shift * (2 * sums.effective + size * shift),
        sums.cross + shift * (sums.raw + sums.effective + size * shift),
    ]
    return torch.stack(moved).sum(-1)


def _pearson(moments: Float[Tensor, "5 head"], mean: Float[Tensor, ""]) -> PerHead:
    """Return the correlation of raw and effective attention; NaN where all entries of either are equal."""
    raw, effective, raw_square, effective_square, cross = moments
    raw_variance = raw_square - raw.square()
    effective_variance = effective_square - effective.square()
    constant = (raw_variance <= CONSTANT * (raw_square + mean**2)) | (
        effective_variance <= CONSTANT * (effective_square + mean**2)
    )
    spread = (raw_variance * effective_variance).clamp_min(torch.finfo(torch.float64).tiny).sqrt()
    return torch.where(constant, torch.nan, ((cross - raw * effective) / spread).clamp(-1, 1))


def _sinks(layer: Layer, by_key: Float[Tensor, "head 2 key"]) -> dict[str, Tensor]:
    """Return the columns of the sinks, from the mean attention to each key and from its mean norm share over ‖t‖."""
    mass, share = by_key.unbind(1)
    places = layer.structural.to(mass.device).clone()
    places[:, 0] = True
    sink = mass.masked_fill(~places.repeat_interleave(layer.heads, 0), -1.0).argmax(1, keepdim=True)
    lengths = layer.lengths()
    norm, count = lengths.gather(1, sink)[:, 0], lengths.shape[1]
    middle = {(count + 1) // 2, count // 2 + 1}
    median = torch.stack([lengths.kthvalue(rank, 1).values for rank in middle]).mean(0)
    learned = (1 - mass.sum(1)).clamp_min(0) if layer.has_sink else torch.zeros_like(mass[:, 0])
    return {
        "sink": sink[:, 0],
        "sink_mass": mass.gather(1, sink)[:, 0],
        "sink_norm_share": share.gather(1, sink)[:, 0] * norm,
        "sink_value_norm": share_of(norm, median),
        "first_mass": mass[:, 0],
        "learned_sink": learned,
    }
