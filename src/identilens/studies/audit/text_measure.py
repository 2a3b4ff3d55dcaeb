"""Texts of one length in one attention call: their share of the batch, measured block by block."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.errors import NumericalError, UnsupportedModelError
from identilens.linalg import HALF, OutputFactor, ProjectedValues, Visible
from identilens.linalg.causal_sums import CausalSums, checked_rows
from identilens.linalg.full_rows import FullRows
from identilens.linalg.narrow import times_few
from identilens.measures.attention.parked import ParkedAttention, ParkedBuilder
from identilens.measures.attention.summary import AttentionSummary, SummaryBuilder
from identilens.models.at_once import room, slices, texts_of_a_product
from identilens.models.fused import Scratch, attend_with, fused_weights, is_fused
from identilens.models.heads import CapturedLayer
from identilens.models.interface import AttentionCall
from identilens.models.layout import Site
from identilens.runs.matrices import MatrixKey
from identilens.studies.audit.certain import certain_rows

VALUES_AT_ONCE = 2**21
"""Entries of values, in float64, of the texts and heads that a CPU takes at once."""

WEIGHTS_AT_ONCE = 8 * 2**20
"""Bytes of weights of the texts that a CPU takes at once: more would not stay in its cache."""

Types = Sequence[Tensor]
"""Token types of each text, (position, type)."""


class TextMeasure:
    """Takes the attention calls of some texts of one length, without padding; gives output, summaries and matrices.

    All texts are set up at once; their weights are taken as many texts at a time as fit the cache. ``factor`` is that
    of the output projections; ``types`` are those of queries and keys; ``value_bias`` is subtracted from the values,
    one row a value head, where it is given; ``keep`` keeps the matrices. Matrices and certain rows are for one text.
    """

    def __init__(
        self, texts: Sequence[int], site: Site, call: AttentionCall, factor: OutputFactor,
        types: tuple[Types, Types], value_bias: Float[Tensor, "group d_v"] | None, keep: bool, scratch: Scratch,
    ) -> None:  # fmt: skip
        self.texts, self.site, self.call, self._scratch = texts, site, call, scratch
        (n_query, d_k), (n_key, d_v) = call.query.shape[-2:], call.value.shape[-2:]
        self.counts = {"n_query": n_query, "n_key": n_key, "d_k": d_k, "d_v": d_v, "d_model": factor.d_model}
        self.factor, self._factor = factor, factor.lower.to(torch.promote_types(call.query.dtype, torch.float32))
        self._group = site.heads // call.value.shape[1]
        self.bias = None if value_bias is None else value_bias.double().repeat_interleave(self._group, 0)[:, None]
        visible = self._visible()
        # Where every query sees every key, the projected values themselves are not needed.
        output = factor if visible is None and factor.is_spared(n_key) else None
        kept = factor.lower.new_empty(len(texts), site.heads, n_key, d_v if output else factor.lower.shape[-1])
        lengths = kept.new_empty(kept.shape[:-1])
        # A few heads at a time in a long text, so that no second copy of all values is held.
        step = max(1, room(VALUES_AT_ONCE, kept.device) // (n_key * d_v)) if len(texts) == 1 else site.heads
        for some in product(texts_of_a_product(len(texts), kept.device), slices(site.heads, step)):
            projected = self._take(*some, kept[some], project=output is None)
            lengths[some] = torch.linalg.vector_norm(projected, dim=-1)
        sides = [torch.stack([*side]) for side in types]
        # The last type contains every token without a type of its own.
        self._parked = ParkedBuilder(lengths.flatten(0, 1), sides[1][..., :-1].any(-1), call.has_sink)
        self._sizes = lengths.new_zeros(len(texts))
        self._require_finite(lengths, "values")
        output = output and output.flat(kept.shape[:2])
        self.projected = ProjectedValues(kept.flatten(0, 1), factor.d_model, None, output)
        by_head = [side.repeat_interleave(site.heads, 0) for side in sides]
        self.builder = SummaryBuilder(self.projected, n_query, visible, *by_head, sink=call.has_sink)
        columns = torch.cat([self._parked.lengths[..., None], self.builder.key_types], -1)
        self._columns = columns.to(self._factor.dtype).unflatten(0, (len(texts), -1))
        self._kept: list[tuple[Tensor, Tensor]] | None = [] if keep else None
        self._unproven = set(range(site.heads)) if call.has_sink else set()

    def run(self, step: int) -> Iterator[tuple[slice, slice, Float[Tensor, "text row head d_v"]]]:
        """Take the weights ``step`` rows at a time; yield texts, rows and their attention output."""
        n_query, texts = self.counts["n_query"], len(self.texts)
        spanned = self._outputs_of_coordinates() if self._kept is None and self._is_spanned() else None
        size = 4 * self.site.heads * min(step, n_query) * self.counts["n_key"]
        at_once = max(1, room(WEIGHTS_AT_ONCE, self.call.query.device) // size) if self.builder.by_head else texts
        for some in slices(texts, at_once):
            call = self.call.only(range(texts)[some], n_query, self.counts["n_key"])
            for rows in self._blocks(step):
                add = self._add if spanned is None else partial(self._add_spanned, to_outputs=spanned)
                yield some, rows, add(call, some, rows)

    def _blocks(self, step: int) -> Iterator[slice]:
        """Yield at most ``step`` rows at a time; of causal rows, of which few see all keys, also few at a time."""
        n_query, causal = self.counts["n_query"], self._causal
        edges = [0, n_query] if causal is None else causal.edges(0, n_query)
        for begin, end in pairwise(edges):
            for start in range(begin, end, step):
                yield slice(start, min(start + step, end))

    def finish(self) -> tuple[AttentionSummary, ParkedAttention]:
        """Return the scalars of all heads of one text after the other, once every row was taken."""
        self._require_finite(self._sizes, "output")
        return self.builder.finish(), self._parked.finish()

    def certain(self, queries: Sequence[int], sinks: Int[Tensor, " head"]) -> list[list[dict[str, Any]]]:
        """Return, head by head, what is certain of some rows, given the position of each head's sink."""
        if not queries:
            return [[]] * self.site.heads
        call = self.call.rows(queries)
        layer = CapturedLayer.of(call, self.site, *call.attend())
        # Weights mix values with their bias: a sink, whose value is zero, makes the difference.
        mixed = self.projected.compact if self.bias is None else self.projected.compact + self.bias @ self.factor.lower
        return certain_rows(layer, ProjectedValues(mixed, self.counts["d_model"]), queries, sinks.tolist())

    def matrices(self) -> Mapping[str, Tensor]:
        """Return raw and effective attention by key, with each row's rank where rows are masked.

        Values are kept of heads of whose weights something can be proven: the others have a sink, or weights that are
        known in half precision only.
        """
        if not self._kept:
            return {}
        raw, effective = (torch.cat(blocks, 1) for blocks in zip(*self._kept, strict=True))
        kept = {"raw": raw, "effective": effective, "values": self.projected.compact}
        projector = self.builder.projector
        if not isinstance(projector, FullRows):
            ranks, seen = projector.row_ranks(), projector.seen(slice(None))
            kept |= {"row_rank": ranks, "row_nullity": projector.row_sizes() + self.builder.sink - ranks}
            kept |= {"visible": seen.expand(self.site.heads, -1, -1)}
        return {
            str(MatrixKey(self.texts[0], self.site.layer, head, self.site.kind, name)): tensor[head].cpu().contiguous()
            for head in range(self.site.heads)
            for name, tensor in kept.items()
            if name != "values" or head not in self._unproven
        }

    def _take(
        self, texts: slice, heads: slice, kept: Float[Tensor, "text head key column"], *, project: bool
    ) -> Float[Tensor, "text head key r"]:
        """Store the values of some heads in ``kept``, or T in a small basis; return T in either case."""
        groups = torch.arange(heads.start, heads.stop, device=kept.device) // self._group
        values = self.call.value[texts, heads] if self._group == 1 else self.call.value[texts][:, groups]
        values = values if self.bias is None else values.double() - self.bias[heads]
        if project:
            values = values.to(torch.float64, memory_format=torch.contiguous_format)
            return torch.matmul(values, self.factor.lower[heads], out=kept)
        kept.copy_(values)
        return values.to(self._factor.dtype) @ self._factor[heads]

    def _add(self, call: AttentionCall, texts: slice, rows: slice) -> Float[Tensor, "text row head d_v"]:
        """Take some rows of some texts, and return their output."""
        columns, causal = self._columns[texts], self._causal is not None
        output, weights, mixed = attend_with(call, rows, columns, self._scratch, causal)
        if weights.dtype in HALF:
            weights = self._recomputed(call.rows(range(self.counts["n_query"])[rows]), output, weights)
            mixed = times_few(weights, columns)
        if self._kept is not None:
            kept = weights[0]
            self._kept.append((kept.clone(), self.builder.projector.effective(rows, kept).to(kept.dtype)))
        weights = weights.to(mixed.dtype)
        outputs = output.transpose(1, 2).to(weights.dtype)
        if self.bias is not None:
            outputs = outputs - weights.sum(-1, keepdim=True) * self.bias.to(weights.dtype)
        outputs, weights, mixed = (one.flatten(0, 1) for one in (outputs @ self._factor, weights, mixed))
        self._parked.add(weights, mixed[..., 0], self._heads(texts))
        self._park_outputs(texts, outputs)
        self.builder.add(rows, weights, outputs, heads=self._heads(texts), raw=mixed[..., 1:])
        return output

    def _add_spanned(
        self, call: AttentionCall, texts: slice, rows: slice, to_outputs: Float[Tensor, "all k column"]
    ) -> Float[Tensor, "text row head d_v"]:
        """Take some rows of texts whose values the basis spans: their output follows from their coordinates.

        The model's own attention is computed for a few rows, as a check.
        """
        heads = self._heads(texts)
        weights = fused_weights(call, rows, self._scratch).flatten(0, 1)
        mixed = times_few(weights, self._columns[texts].flatten(0, 1))
        self._parked.add(weights, mixed[..., 0], heads)
        found = self.builder.project(rows, weights, heads=heads, raw=mixed[..., 1:], overwrite=True)
        output, outputs = found.times(to_outputs[heads]).tensor_split([self.counts["d_v"]], -1)
        self._park_outputs(texts, outputs)
        if checked := checked_rows(rows):
            own = (call.rows(checked).run().transpose(1, 2) @ self._factor).flatten(0, 1)
            self.builder.check(outputs[:, [row - rows.start for row in checked]], own, heads=heads)
        return output.unflatten(0, (-1, self.site.heads)).transpose(1, 2)

    @property
    def _causal(self) -> CausalSums | None:
        """Sums of rows that see the keys up to their own, if these are such rows and none is kept whole."""
        return self.builder.causal if self._kept is None else None

    def _park_outputs(self, texts: slice, outputs: Float[Tensor, "head row r"]) -> None:
        sizes = torch.linalg.vector_norm(outputs, dim=-1)
        self._sizes[texts] += sizes.unflatten(0, (-1, self.site.heads)).sum((1, 2))
        self._parked.add_outputs(sizes, self._heads(texts))

    def _is_spanned(self) -> bool:
        """Whether weights are computed here, and values follow from their coordinates in the basis of col(T)."""
        if self.bias is not None or not self.builder.by_head or not is_fused(self.call, self._factor.dtype):
            return False
        full = self.builder.projector.rank == self.counts["d_v"]
        # Of nearly square values the null space follows every rounding of the layers before.
        return self.counts["n_key"] >= 2 * self.counts["d_v"] and bool(full.all())

    def _outputs_of_coordinates(self) -> Float[Tensor, "head k column"]:
        """Return what coordinates in the basis are multiplied with, for the output and the head outputs after W_O."""
        # Values times the small factor, lower triangular and of full rank here, are U Uᵀ F.
        inner = self.projected.factor.inner.unflatten(0, (-1, self.site.heads))
        parts = (inner @ self.factor.inverse, inner)
        return torch.cat([part.to(self._factor.dtype) for part in parts], -1).flatten(0, 1)

    def _heads(self, texts: slice) -> slice:
        return slice(texts.start * self.site.heads, texts.stop * self.site.heads)

    def _recomputed(
        self, call: AttentionCall, output: Tensor, weights: Float[Tensor, "text head row key"]
    ) -> Float[Tensor, "text head row key"]:
        """Return the weights of a model in half precision, computed again from Q and K where that is possible."""
        exact = weights.float()
        for text in range(len(exact)):
            rows, own = call.only([text], *weights.shape[2:]), slice(text, text + 1)
            for head in CapturedLayer.of(rows, self.site, output[own], weights[own]).heads:
                try:
                    exact[text, head.head] = head.attention.float()
                except UnsupportedModelError:
                    self._unproven.add(head.head)
        return exact

    def _visible(self) -> Visible:
        if self.call.mask is None:
            return self.call.unmasked_pattern()
        visible = self.call.visible()
        return None if visible is None or bool(visible.all()) else visible[0].expand(self.counts["n_query"], -1)

    def _require_finite(self, tensor: Float[Tensor, "text *rest"], what: str) -> None:
        # A sum is finite only if every term is, and costs one pass.
        if bool(torch.isfinite(tensor.sum())):
            return
        bad = [text for text, one in zip(self.texts, tensor, strict=True) if not bool(torch.isfinite(one.sum()))]
        raise NumericalError(
            f"text {bad[0] if bad else self.texts[0]}, {self.site.kind} layer {self.site.layer}: attention {what} has "
            "NaN or infinite entries. Look for an overflow in half precision (load with --dtype float32) or a broken "
            "checkpoint."
        )
