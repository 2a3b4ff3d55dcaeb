"""A layer's attention on texts of one length: values, mask, and blocks of weights and outputs, however they come."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise, product
from math import isfinite
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import NumericalError, UnsupportedModelError
from identilens.linalg import HALF, OutputFactor, ProjectedValues, Visible
from identilens.linalg.causal_rows import CausalRows, sampled_rows
from identilens.linalg.full_rows import FullRows
from identilens.linalg.row_sums import times_few
from identilens.measures.attention.layer import Block, Layer
from identilens.models.at_once import room, slices, texts_of_a_product
from identilens.models.fused import Scratch, attend_with, fused_weights, is_fused
from identilens.models.heads import CapturedLayer
from identilens.models.interface import AttentionCall
from identilens.models.layout import Site

VALUES_AT_ONCE = 2**21
"""Entries of values, in float64, of the texts and heads that a CPU takes at once."""

WEIGHTS_AT_ONCE = 8 * 2**20
"""Bytes of weights of the texts that a CPU takes at once: more would not stay in its cache."""


class LayerBatch(Layer):
    """The attention of one layer on some texts of one length, without padding, as `measure_layer` takes it.

    Values are read when it is made. Weights come block by block: those of fused attention are computed here, those of
    other implementations by the family's eager attention, whole or a few rows at a time.

    Args:
        texts: Their numbers, for messages.
        call: The texts' attention call.
        factor: That of the output projections.
        types: Token types of each text's queries, and of its keys.
        value_bias: Subtracted from the values, one row a value head, where it is given.
        keeps_maps: Whether raw and effective attention are kept; for one text.
        keeps_means: Whether means over blocks of the weights are; for one text.
        step: Rows whose weights are held at a time.
        scratch: Memory of weights.

    Attributes:
        output: The model's attention output, complete once all blocks have been taken.
        unproven: Heads whose weights are known in half precision only, or that have a sink.
    """

    def __init__(
        self,
        texts: Sequence[int],
        site: Site,
        call: AttentionCall,
        factor: OutputFactor,
        types: tuple[Sequence[Float[Tensor, "query type"]], Sequence[Float[Tensor, "key type"]]],
        *,
        value_bias: Float[Tensor, "group d_v"] | None,
        keeps_maps: bool,
        keeps_means: bool = False,
        step: int,
        scratch: Scratch,
    ) -> None:
        self.texts = texts
        self.site = site
        self.call = call
        self.factor = factor
        self.heads = site.heads
        self.keeps_maps, self.keeps_means = keeps_maps, keeps_means
        self.has_sink = call.has_sink
        self._step = step
        self._scratch = scratch
        self.n_query, self.d_k = call.query.shape[-2:]
        self.n_key, self.d_v = call.value.shape[-2:]
        self._lower = factor.lower.to(torch.promote_types(call.query.dtype, torch.float32))
        self._group = site.heads // call.value.shape[1]
        self._bias = (
            None
            if value_bias is None
            else value_bias.double().repeat_interleave(self._group, 0)[:, None]
        )
        self.query_types, self.key_types = (
            torch.stack([*side]).to(factor.lower).repeat_interleave(site.heads, 0) for side in types
        )
        # The last type contains every token without a type of its own.
        self.structural = torch.stack([*types[1]])[..., :-1].any(-1)
        visible = self._visible()
        self.projected, self._lengths = self._values(visible)
        self.projector = self.projected.projector(self.n_query, visible)
        self.output = call.query.new_empty(len(self.texts), self.n_query, site.heads, self.d_v)
        self.unproven = set(range(site.heads)) if call.has_sink else set()

    def lengths(self) -> Float[Tensor, "head key"]:
        """Return ‖t_k‖ of each key."""
        return self._lengths.flatten(0, 1)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows of all heads, and write the attention output.

        Rows that see every key come a few texts at a time; of causal rows, those that see few keys come apart.
        """
        spans, full = self._spans, isinstance(self.projector, FullRows)
        size = 4 * self.heads * min(self._step, self.n_query) * self.n_key
        at_once = (
            max(1, room(WEIGHTS_AT_ONCE, self.call.query.device) // size)
            if full
            else len(self.texts)
        )
        projector, edges = self.projector, [0, self.n_query]
        if isinstance(projector, CausalRows) and self._is_causal:
            edges = projector.edges(0, self.n_query)
        for texts in slices(len(self.texts), at_once):
            call = self.call.only(range(len(self.texts))[texts], self.n_query, self.n_key)
            for begin, end in pairwise(edges):
                for start in range(begin, end, self._step):
                    rows = slice(start, min(start + self._step, end))
                    if not spans:
                        yield self._attended(call, texts, rows)
                        continue
                    heads = self._of(texts)
                    weights = fused_weights(call, rows, self._scratch).flatten(0, 1)
                    mixed = times_few(weights, self._columns[texts].flatten(0, 1))
                    sampled = sampled_rows(rows)
                    outputs = weights.new_empty(len(weights), 0, self._lower.shape[-1])
                    if sampled:
                        outputs = (call.rows(sampled).run().transpose(1, 2) @ self._lower).flatten(
                            0, 1
                        )
                    block = Block(
                        heads=heads,
                        rows=rows,
                        weights=weights,
                        norms=mixed[..., 0],
                        by_type=mixed[..., 1:],
                        outputs=outputs,
                        places=[row - rows.start for row in sampled],
                        back=self._back[heads],
                        reusable=True,
                    )
                    yield block
                    output = cast(Tensor, block.rebuilt)
                    self.output[texts, rows] = output.unflatten(0, (-1, self.heads)).transpose(1, 2)

    def rows(self, queries: Sequence[int]) -> tuple[CapturedLayer, ProjectedValues]:
        """Return some rows of the one text, and the values that their weights mix: with their bias.

        A sink, whose value is zero, makes the difference.
        """
        call = self.call.rows(queries)
        compact = self.projected.compact
        mixed = compact if self._bias is None else compact + self._bias @ self.factor.lower
        layer = CapturedLayer.of(call, self.site, *call.attend())
        return layer, ProjectedValues(mixed.cpu(), self.factor.d_model)

    def require_finite(self, sizes: Float[Tensor, "head *rest"], what: str) -> None:
        """Raise for numbers that are not finite.

        Raises:
            NumericalError: Naming the first text and the layer.
        """
        # A sum is finite only if every term is, and costs one pass.
        if bool(torch.isfinite(sizes.sum())):
            return
        by_text = sizes.unflatten(0, (len(self.texts), -1)).flatten(1).sum(1)
        bad = [
            text
            for text, total in zip(self.texts, by_text.tolist(), strict=True)
            if not isfinite(total)
        ]
        raise NumericalError(
            f"text {bad[0] if bad else self.texts[0]}, {self.site.kind} layer {self.site.layer}: attention {what} has "
            "NaN or infinite entries. Look for an overflow in half precision (load with --dtype float32) or a broken "
            "checkpoint."
        )

    def _visible(self) -> Visible:
        if self.call.mask is None:
            return self.call.unmasked_pattern()
        visible = self.call.visible()
        return (
            None if visible is None or bool(visible.all()) else visible[0].expand(self.n_query, -1)
        )

    def _values(self, visible: Visible) -> tuple[ProjectedValues, Float[Tensor, "text head key"]]:
        """Return T of all heads, and the lengths of its rows."""
        lower = self.factor.lower
        # Where every query sees every key, the projected values themselves are not needed.
        output = self.factor if visible is None and self.factor.is_spared(self.n_key) else None
        kept = lower.new_empty(
            len(self.texts), self.heads, self.n_key, self.d_v if output else lower.shape[-1]
        )
        lengths = kept.new_empty(kept.shape[:-1])
        # A few heads at a time in a long text, so that no second copy of all values is held.
        step = self.heads
        if len(self.texts) == 1:
            step = max(1, room(VALUES_AT_ONCE, kept.device) // (self.n_key * self.d_v))
        for texts, heads in product(
            texts_of_a_product(len(self.texts), kept.device), slices(self.heads, step)
        ):
            groups = torch.arange(heads.start, heads.stop, device=kept.device) // self._group
            values = (
                self.call.value[texts, heads]
                if self._group == 1
                else self.call.value[texts][:, groups]
            )
            values = values if self._bias is None else values.double() - self._bias[heads]
            if output is None:
                values = values.to(torch.float64, memory_format=torch.contiguous_format)
                mapped = torch.matmul(values, lower[heads], out=kept[texts, heads])
            else:
                kept[texts, heads] = values.to(kept.dtype)
                mapped = values.to(self._lower.dtype) @ self._lower[heads]
            lengths[texts, heads] = torch.linalg.vector_norm(mapped, dim=-1)
        self.require_finite(lengths.flatten(0, 1), "values")
        output = output and output.flat(kept.shape[:2])
        return ProjectedValues(kept.flatten(0, 1), self.factor.d_model, None, output), lengths

    @property
    def _is_causal(self) -> bool:
        """Whether weights end at the last row's key: rows see the keys up to their own, and none is kept whole."""
        return isinstance(self.projector, CausalRows) and not self.keeps_maps

    @cached_property
    def _columns(self) -> Float[Tensor, "text head key column"]:
        """The columns that every block of weights is multiplied with: ‖t_k‖ and the key types."""
        columns = torch.cat([self.lengths()[..., None], self.key_types], -1)
        return columns.to(self._lower.dtype).unflatten(0, (len(self.texts), -1))

    @cached_property
    def _spans(self) -> bool:
        """Whether weights are computed here, and values follow from their coordinates in the basis of col(T)."""
        plain = not self.keeps_maps and self._bias is None and isinstance(self.projector, FullRows)
        if not plain or not is_fused(self.call, self._lower.dtype):
            return False
        # Of nearly square values the null space follows every rounding of the layers before.
        return self.n_key >= 2 * self.d_v and bool((self.projector.rank == self.d_v).all())

    @cached_property
    def _back(self) -> Float[Tensor, "head k column"]:
        """Uᵀ F and Uᵀ V: what coordinates of effective attention are multiplied with."""
        # V is F times the inverse of the small factor, which is lower triangular and of full rank here.
        inner = self.projected.factor.inner.unflatten(0, (-1, self.heads))
        return (
            torch.cat([inner, inner @ self.factor.inverse], -1).to(self._lower.dtype).flatten(0, 1)
        )

    def _attended(self, call: AttentionCall, texts: slice, rows: slice) -> Block:
        """Return weights with the model's own output."""
        columns = self._columns[texts]
        output, weights, mixed = attend_with(call, rows, columns, self._scratch, self._is_causal)
        self.output[texts, rows] = output
        if weights.dtype in HALF:
            weights = self._recomputed(call.rows(range(self.n_query)[rows]), output, weights)
            mixed = times_few(weights, columns)
        weights = weights.to(mixed.dtype)
        outputs = output.transpose(1, 2).to(weights.dtype)
        if self._bias is not None:
            outputs = outputs - weights.sum(-1, keepdim=True) * self._bias.to(weights.dtype)
        outputs, weights, mixed = (
            one.flatten(0, 1) for one in (outputs @ self._lower, weights, mixed)
        )
        return Block(
            heads=self._of(texts),
            rows=rows,
            weights=weights,
            norms=mixed[..., 0],
            by_type=mixed[..., 1:],
            outputs=outputs,
        )

    def _of(self, texts: slice) -> slice:
        """Return the heads of some texts."""
        return slice(texts.start * self.heads, texts.stop * self.heads)

    def _recomputed(
        self, call: AttentionCall, output: Tensor, weights: Float[Tensor, "text head row key"]
    ) -> Float[Tensor, "text head row key"]:
        """Return the weights of a model in half precision, computed again from Q and K where that is possible."""
        exact = weights.float()
        for text in range(len(exact)):
            rows, own = call.only([text], *weights.shape[2:]), slice(text, text + 1)
            layer = CapturedLayer.of(rows, self.site, output[own], weights[own], moved=False)
            for head in layer.heads:
                try:
                    exact[text, head.head] = head.attention.float()
                except UnsupportedModelError:
                    self.unproven.add(head.head)
        return exact
