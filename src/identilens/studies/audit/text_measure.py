"""Texts of one length in one attention call: their share of the batch, measured block by block."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import NumericalError, UnsupportedModelError
from identilens.linalg import HALF, ProjectedValues, Visible
from identilens.linalg.full_rows import FullRows
from identilens.measures.attention.parked import ParkedAttention, ParkedBuilder
from identilens.measures.attention.summary import AttentionSummary, SummaryBuilder
from identilens.models.fused import attend_with
from identilens.models.heads import CapturedLayer
from identilens.models.interface import AttentionCall
from identilens.models.layout import Site
from identilens.runs.matrices import MatrixKey
from identilens.studies.audit.certain import certain_rows

VALUES_AT_ONCE = 2**20
"""Entries of values, in float64, of the texts and heads that are taken at once."""

WEIGHTS_AT_ONCE = 2 * 2**20
"""Bytes of weights of the texts that are taken at once: more would not stay in the processor's cache."""

ByHead = TypeVar("ByHead", AttentionSummary, ParkedAttention)

Types = Sequence[Tensor]
"""Token types of each text, (position, type)."""


class TextMeasure:
    """Takes the attention calls of some texts of one length, without padding; gives output, summaries and matrices.

    All texts are set up at once; their weights are taken as many texts at a time as fit the cache. ``factor`` is that
    of the output projections, ``d_model`` their columns; ``types`` are those of queries and keys; ``value_bias`` is
    subtracted from the values, one row a value head, where it is given; ``keep`` keeps the matrices. Matrices and
    certain rows are for one text.
    """

    def __init__(
        self, texts: Sequence[int], site: Site, call: AttentionCall, factor: Float[Tensor, "head d_v r"], d_model: int,
        types: tuple[Types, Types], value_bias: Float[Tensor, "group d_v"] | None, keep: bool,
    ) -> None:  # fmt: skip
        self.texts, self.site, self.call = texts, site, call
        (n_query, d_k), (n_key, d_v) = call.query.shape[-2:], call.value.shape[-2:]
        self.counts = {"n_query": n_query, "n_key": n_key, "d_k": d_k, "d_v": d_v, "d_model": d_model}
        self.factor, self._factor = factor, factor.to(torch.promote_types(call.query.dtype, torch.float32))
        group = site.heads // call.value.shape[1]
        self.bias = None if value_bias is None else value_bias.double().repeat_interleave(group, 0)[:, None]
        compact = factor.new_empty(len(texts), site.heads, n_key, factor.shape[-1])
        # A few heads at a time in long texts, so that no second copy of all values is held.
        step = max(1, VALUES_AT_ONCE // (n_key * d_v))
        for place, start in product(range(len(texts)), range(0, site.heads, step)):
            some = slice(start, min(start + step, site.heads))
            groups = torch.arange(some.start, some.stop, device=call.value.device) // group
            values = call.value[place, some] if group == 1 else call.value[place, groups]
            values = values.to(torch.float64, memory_format=torch.contiguous_format)
            values = values if self.bias is None else values - self.bias[some]
            torch.matmul(values, factor[some], out=compact[place, some])
        self._require_finite(compact, "values", texts)
        self.compact = compact.flatten(0, 1)
        by_head = [torch.stack([*side]).repeat_interleave(site.heads, 0) for side in types]
        self.builder = SummaryBuilder(ProjectedValues(self.compact, d_model), n_query, self._visible(), *by_head)
        # The last type contains every token without a type of its own.
        self._parked = ParkedBuilder(self.compact, torch.stack([one[:, :-1].any(-1) for one in types[1]]))
        columns = [self._parked.lengths[..., None], *([self.builder.key_types] if self.builder.by_head else [])]
        self._columns = torch.cat(columns, -1).to(self._factor.dtype).unflatten(0, (len(texts), -1))
        self._kept: list[tuple[Tensor, Tensor]] | None = [] if keep else None
        self._unproven = set(range(site.heads)) if call.has_sink else set()

    def run(self, step: int) -> Float[Tensor, "text query head d_v"]:
        """Return the attention output, taking the weights ``step`` rows at a time."""
        n_query, texts = self.counts["n_query"], len(self.texts)
        at_once = max(1, WEIGHTS_AT_ONCE // (4 * self.site.heads * min(step, n_query) * self.counts["n_key"]))
        at_once = at_once if self.builder.by_head else texts
        outputs = self.call.query.new_empty(texts, n_query, self.site.heads, self.counts["d_v"])
        for first in range(0, texts, at_once):
            some = slice(first, min(first + at_once, texts))
            call = self.call.only(range(texts)[some], n_query, self.counts["n_key"])
            for start in range(0, n_query, step):
                rows = slice(start, min(start + step, n_query))
                outputs[some, rows] = self._add(call, some, rows)
        return outputs

    def finish(self) -> list[tuple[AttentionSummary, ParkedAttention]]:
        """Return the scalars of all heads of each text, once every row was taken."""
        summary, parked = self.builder.finish(), self._parked.finish()
        heads = [slice(text * self.site.heads, (text + 1) * self.site.heads) for text in range(len(self.texts))]
        return [(_heads_of(summary, some), _heads_of(parked, some)) for some in heads]

    def certain(self, queries: Sequence[int], sinks: Sequence[int]) -> list[list[dict[str, Any]]]:
        """Return, head by head, what is certain of some rows, given the position of each head's sink."""
        if not queries:
            return [[] for _ in sinks]
        call = self.call.rows(queries)
        layer = CapturedLayer.of(call, self.site, *call.attend())
        # Weights mix values with their bias: a sink, whose value is zero, makes the difference.
        mixed = self.compact if self.bias is None else self.compact + self.bias @ self.factor
        return certain_rows(layer, ProjectedValues(mixed, self.counts["d_model"]), queries, sinks)

    def matrices(self) -> Mapping[str, Tensor]:
        """Return raw and effective attention by key, with each row's rank where rows are masked.

        Values are kept of heads of whose weights something can be proven: the others have a sink, or weights that are
        known in half precision only.
        """
        if not self._kept:
            return {}
        raw, effective = (torch.cat(blocks, 1) for blocks in zip(*self._kept, strict=True))
        kept = {"raw": raw, "effective": effective, "values": self.compact}
        projector = self.builder.projector
        if not isinstance(projector, FullRows):
            ranks, seen = projector.row_ranks(), projector.seen(slice(None))
            kept |= {"row_rank": ranks, "row_nullity": projector.row_sizes() - ranks}
            kept |= {"visible": seen.expand(self.site.heads, -1, -1)}
        return {
            str(MatrixKey(self.texts[0], self.site.layer, head, self.site.kind, name)): tensor[head].cpu().contiguous()
            for head in range(self.site.heads)
            for name, tensor in kept.items()
            if name != "values" or head not in self._unproven
        }

    def _add(self, call: AttentionCall, texts: slice, rows: slice) -> Float[Tensor, "text row head d_v"]:
        """Take some rows of some texts, and return their output."""
        output, weights, mixed = attend_with(call, rows, self._columns[texts])
        if self._kept is not None:
            exact = self._exact(rows, weights)
            self._kept.append((exact, self.builder.projector.effective(rows, exact).to(exact.dtype)))
        weights = weights.to(mixed.dtype)
        outputs = output.transpose(1, 2).to(weights.dtype)
        self._require_finite(outputs, "output", self.texts[texts])
        if self.bias is not None:
            outputs = outputs - weights.sum(-1, keepdim=True) * self.bias.to(weights.dtype)
        heads = slice(texts.start * self.site.heads, texts.stop * self.site.heads)
        outputs, weights, mixed = (one.flatten(0, 1) for one in (outputs @ self._factor, weights, mixed))
        norms, raw = mixed[..., 0], mixed[..., 1:] if self.builder.by_head else None
        self._parked.add(weights, outputs, heads=heads, norms=norms)
        self.builder.add(rows, weights, outputs, heads=heads, raw=raw, overwrite=self._kept is None)
        return output

    def _exact(self, rows: slice, weights: Float[Tensor, "1 head row key"]) -> Float[Tensor, "head row key"]:
        """Return the weights of a text that is kept; of a model in half precision computed again, where possible."""
        if weights.dtype not in HALF:
            return weights[0].to(torch.promote_types(weights.dtype, torch.float32))
        call, exact = self.call.rows(range(self.counts["n_query"])[rows]), weights[0].float()
        for head in CapturedLayer.of(call, self.site, *call.attend()).heads:
            try:
                exact[head.head] = head.attention.float()
            except UnsupportedModelError:
                self._unproven.add(head.head)
        return exact

    def _visible(self) -> Visible:
        if self.call.mask is None:
            return self.call.unmasked_pattern()
        visible = self.call.visible()
        return None if visible is None or bool(visible.all()) else visible[0].expand(self.counts["n_query"], -1)

    def _require_finite(self, tensor: Float[Tensor, "text *rest"], what: str, texts: Sequence[int]) -> None:
        # A sum is finite only if every term is, and costs one pass.
        if bool(torch.isfinite(tensor.sum())):
            return
        bad = [text for text, one in zip(texts, tensor, strict=True) if not bool(torch.isfinite(one.sum()))]
        raise NumericalError(
            f"text {bad[0] if bad else texts[0]}, {self.site.kind} layer {self.site.layer}: attention {what} has "
            "NaN or infinite entries. Look for an overflow in half precision (load with --dtype float32) or a broken "
            "checkpoint."
        )


def _heads_of(measures: ByHead, heads: slice) -> ByHead:
    return replace(measures, **{field.name: getattr(measures, field.name)[heads] for field in fields(measures)})
