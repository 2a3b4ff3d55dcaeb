"""The measures of an attention layer, from blocks of rows, so that no n x n matrix is in memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from identilens.linalg import ProjectedValues
from identilens.linalg.checks import check_finite
from identilens.linalg.masked_rows import MaskedRows
from identilens.linalg.memory import joined
from identilens.linalg.rows import FullRows, RowProjector
from identilens.linalg.simplex import least_outside
from identilens.measures.attention.influence import share_of

PerHead = Float[Tensor, " head"]
BLOCKS = 48
"""Blocks of neighbouring queries, and of keys, of whose attention means are kept."""

CONSTANT = 1e-12
"""All entries count as equal up to this variance, as a share of the mean square."""
_TINY = torch.finfo(torch.float64).tiny


class Block(NamedTuple):
    """Some neighbouring rows of all heads of a layer.

    Attributes:
        rows: The rows.
        weights: Their weights on the keys up to the last that one of them sees.
        outputs: Head outputs in the basis of the compact values.
    """

    rows: slice
    weights: Float[Tensor, "head row key"]
    outputs: Float[Tensor, "head row r"]


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
    query_types: Float[Tensor, "text query type"]
    key_types: Float[Tensor, "text key type"]
    structural: Bool[Tensor, "text key"]
    has_sink: bool
    keeps_maps: bool
    keeps_means: bool = False

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Yield the rows of all heads, each once."""

    def parts(self) -> Iterator["Layer"]:
        """Yield the layer by some heads at a time, as memory allows, if it is one text's; here all of them at once."""
        yield self


class Sums(NamedTuple):
    """What is added up of some heads of a layer, over blocks of rows.

    Attributes:
        of_rows: Attention a and effective attention e of each row, by type of key; ‖a‖, the norms of what e mixes less
            the output and of the output, ‖e‖², and ‖(I − P) 1‖² with the projector P on col(T) at the row's keys.
        adding: Whether the ones add to the rank of T at the row's keys.
        by_key: Attention to each key, and its norm share over ‖t‖.
        lengths: ‖t‖ of each key.
        rank: See `LayerMeasures`.
        simplex_nullity: The same.
        sizes: How many keys each row sees.
    """

    of_rows: Float[Tensor, "head query _"]
    adding: Bool[Tensor, "head query"]
    by_key: Float[Tensor, "head 2 key"]
    lengths: Float[Tensor, "head key"]
    rank: Int[Tensor, " head"]
    simplex_nullity: Int[Tensor, " head"]
    sizes: Int[Tensor, "part query"]


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
        received: Sum of raw and of effective attention of all queries of a type to all keys of a type.
        kept: What is kept, by name: ``raw`` and ``effective`` attention; ``means``, attention of a block of
            neighbouring queries, on average, to each block of keys, whose rows sum to 1.
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
    received: Float[Tensor, "2 head query_type key_type"]
    kept: dict[str, Float[Tensor, "head _ _"]]


def measure_layer(layer: Layer) -> LayerMeasures:
    """Return the measures of a layer's heads, added up over blocks of rows, in float64 on the layer's device.

    Memory O(n · block), and what the projector of one of its parts holds.
    """
    parts, kept = [], []
    for part in layer.parts():
        projector = part.projector
        lengths = torch.linalg.vector_norm(projector.compact, dim=-1)
        types = layer.key_types.repeat_interleave(part.heads, 0)
        # One product gives sums by type, of which all are the row's sum, and norms of what is mixed or outputs.
        columns = torch.cat([types, lengths[..., None]], -1)
        mix = projector.mixer(types, projector.compact)
        count = types.shape[-1]
        by_key = lengths.new_zeros(len(lengths), 2, projector.keys)
        maps, rows = KeptMaps(part), []
        for block in part.blocks():
            weights, outputs = block.weights.double(), block.outputs
            end = weights.shape[-1]
            maps.add(block)
            summed, squares, outside = mix(block.rows, weights)
            raw = weights @ columns[:, :end]
            total = raw[..., -1]
            ones = torch.ones_like(total)
            both = torch.stack([ones, share_of(ones, total)], 1)
            by_key[..., :end] += both @ weights
            norms = [
                torch.linalg.vector_norm(vectors, dim=-1)
                for vectors in (weights, summed[..., count:] - outputs, outputs)
            ]
            of_rows = torch.stack([*norms, squares, outside], -1)
            rows.append(torch.cat([raw[..., :count], summed[..., :count], of_rows], -1))
        of_rows = torch.cat(rows, 1)
        adding = of_rows[..., -1] > _least_outside(part)
        parts.append(
            Sums(
                of_rows,
                adding,
                by_key,
                lengths,
                projector.rank,
                _simplex_nullity(part, adding),
                projector.sizes[None],
            )
        )
        kept.append(maps.kept())
        del part, projector, mix, maps  # before the next part is made

    return _measures(
        layer,
        Sums(*map(joined, zip(*parts, strict=True))),
        {name: joined([part[name] for part in kept]) for name in kept[0]},
    )


def _measures(layer: Layer, sums: Sums, kept: dict[str, Tensor]) -> LayerMeasures:
    """Return the measures, given the sums of all heads, and what is kept of their maps."""
    by_type = sums.of_rows[..., :-5].unflatten(-1, (2, -1)).movedim(-2, 0)
    raw, errors, output_norms, squares, outside = sums.of_rows[..., -5:].unbind(-1)
    sizes = sums.sizes[0]
    check_finite(attention_output=output_norms)
    totals, squares = by_type.sum(-1), torch.stack([raw.square(), squares])
    if layer.has_sink:
        # One more key of each row, with weight 1 − Σ a and value 0, whose entry of the ones lies outside col(T).
        sink = torch.stack([1 - totals[0], torch.zeros_like(totals[0])])
        sizes, totals, outside = sizes + 1, totals + sink, outside + 1
        squares = squares + sink.square()
    entries = sizes.sum().double()
    # Of weights a and effective attention e; Σ a e = Σ e².
    means, mean_squares = (each.sum(-1) / entries for each in (totals, squares))
    variances = mean_squares - means.square()
    constant = (variances <= CONSTANT * mean_squares).any(0)
    spread = variances.prod(0).clamp_min(_TINY).sqrt()
    pearson = ((mean_squares[1] - means.prod(0)) / spread).clamp(-1, 1)
    # ‖a − e‖² of each row, the part in LN(T); that in LN([T, 1]) lacks its component along (I − P) 1, where the
    # ones add to the rank.
    null = squares[0] - squares[1]
    along = (totals[0] - totals[1]).square()
    along = along / torch.where(sums.adding | layer.has_sink, outside, torch.inf)
    null = torch.stack([null, null - along]).sum(-1)
    null_shares = (null / squares[0].sum(-1).clamp_min(_TINY)).clamp(0, 1)
    received = layer.query_types.repeat_interleave(layer.heads, 0).mT @ by_type
    by_text = output_norms.unflatten(0, (-1, layer.heads))
    shares = share_of(by_text, by_text.sum(1, keepdim=True)).flatten(0, 1)
    error, size = torch.linalg.vector_norm(torch.stack([errors, output_norms]), dim=-1)
    return LayerMeasures(
        rank=sums.rank,
        nullity=sizes[-1] - sums.rank,
        simplex_nullity=sums.simplex_nullity,
        null_share=null_shares[0],
        simplex_null_share=null_shares[1],
        pearson=torch.where(constant, torch.nan, pearson),
        reconstruction_error=error / size.clamp_min(_TINY),
        **_sinks(layer, sums.by_key / len(sizes), sums.lengths),
        output_share=shares.mean(-1),
        received=received,
        kept=kept,
    )


def _least_outside(layer: Layer) -> Float[Tensor, "heads query"]:
    """Return up to which ‖(I − P) 1‖² the ones do not count as outside col(T): [T, 1] then has no more rank than T."""
    T, projector, sizes = layer.projected, layer.projector, layer.projector.sizes
    if not isinstance(projector, FullRows):
        return least_outside(sizes, T.tolerance_of)[None]
    adds_rank = T.simplex_nullity.reshape(-1, 1) < T.keys - projector.rank[:, None]
    return torch.where(adds_rank, -1.0, torch.inf).expand(-1, len(sizes))


def _simplex_nullity(layer: Layer, adding: Bool[Tensor, "head query"]) -> Int[Tensor, " head"]:
    """Return the largest simplex nullity of a row; ``adding`` says in which rows the ones add to the rank of T."""
    T, projector = layer.projected, layer.projector
    masked = type(projector) is MaskedRows
    T = T.restricted(projector.visible[-1]) if masked else T
    last = (T.with_sink() if layer.has_sink else T).simplex_nullity.reshape(-1)
    if not masked:
        return last
    rows = projector.sizes - projector.row_ranks()
    # A learned sink is one more key, and the ones add to the rank of every row with one.
    rows = rows if layer.has_sink else rows - adding.long()
    return torch.maximum(last, rows.amax(-1))


class KeptMaps:
    """What is kept of a layer's maps, added block by block: raw and effective attention, or means of the weights."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._maps: list[Tensor] = []
        self._means: list[Tensor] = []
        if layer.keeps_means:
            sides = layer.query_types, layer.key_types
            self._queries, self._keys = (members(side.shape[1]) for side in sides)

    def add(self, block: Block) -> None:
        """Keep what is asked for of some rows."""
        rows, weights, _ = block
        if self._layer.keeps_maps:
            self._maps.append(pad(weights, (0, self._layer.projector.keys - weights.shape[-1])))
        if self._layer.keeps_means:
            queries = self._queries[:, rows] / self._queries.sum(-1, keepdim=True)
            keys = self._keys[:, : weights.shape[-1]].mT
            means = queries.to(weights) @ (weights @ keys.to(weights))
            self._means.append(means.double().cpu())

    def kept(self) -> dict[str, Tensor]:
        """Return what is kept, by name."""
        kept = {"means": torch.stack(self._means).sum(0).float()} if self._means else {}
        if self._maps:
            raw = torch.cat(self._maps, 1)
            kept |= {"raw": raw, "effective": self._layer.projector.effective(raw).to(raw.dtype)}
        return kept


def members(tokens: int) -> Float[Tensor, "block token"]:
    """Return which of so many tokens is in which block of neighbours: at most `BLOCKS` of about the same size."""
    blocks = min(BLOCKS, tokens)
    return torch.eye(blocks)[:, torch.arange(tokens) * blocks // tokens]


def _sinks(
    layer: Layer, by_key: Float[Tensor, "head 2 key"], lengths: Float[Tensor, "head key"]
) -> dict[str, Tensor]:
    """Return the columns of the sinks, from the mean attention to each key and from its mean norm share over ‖t‖."""
    mass, share = by_key.unbind(1)
    places = layer.structural.to(mass.device).clone()
    places[:, 0] = True
    sink = mass.masked_fill(~places.repeat_interleave(layer.heads, 0), -1.0).argmax(1, keepdim=True)
    norm, count = lengths.gather(1, sink)[:, 0], lengths.shape[1]
    median = lengths.sort(1).values[:, [(count - 1) // 2, count // 2]].mean(1)
    learned = (1 - mass.sum(1)).clamp_min(0) if layer.has_sink else torch.zeros_like(mass[:, 0])
    return {
        "sink": sink[:, 0],
        "sink_mass": mass.gather(1, sink)[:, 0],
        "sink_norm_share": share.gather(1, sink)[:, 0] * norm,
        "sink_value_norm": share_of(norm, median),
        "first_mass": mass[:, 0],
        "learned_sink": learned,
    }
