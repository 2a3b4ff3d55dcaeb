"""One text in one attention call: its share of the batch, measured block by block."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import NumericalError
from identilens.linalg import ProjectedValues, Visible
from identilens.linalg.full_rows import FullRows
from identilens.measures.attention.parked import ParkedAttention, ParkedBuilder
from identilens.measures.attention.summary import AttentionSummary, SummaryBuilder
from identilens.models.heads import CapturedLayer
from identilens.models.interface import AttentionCall
from identilens.models.layout import Site
from identilens.runs.matrices import MatrixKey
from identilens.studies.audit.certain import certain_rows

_VALUES_AT_ONCE = 2**20


class TextMeasure:
    """Takes one text's attention call, padding cut away, and returns its output, summary and matrices.

    ``factor`` is that of the output projections, ``d_model`` their columns; ``types`` are those of queries and keys;
    ``value_bias`` is subtracted from the values, one row a value head, where it is given; ``keep`` keeps the matrices.
    """

    def __init__(
        self, text: int, site: Site, call: AttentionCall, factor: Float[Tensor, "head d_v r"], d_model: int,
        types: tuple[Float[Tensor, "query type"], Float[Tensor, "key type"]],
        value_bias: Float[Tensor, "group d_v"] | None, keep: bool,
    ) -> None:  # fmt: skip
        self.text, self.site, self.call = text, site, call
        (n_query, d_k), (n_key, d_v) = call.query.shape[-2:], call.value.shape[-2:]
        self.counts = {"n_query": n_query, "n_key": n_key, "d_k": d_k, "d_v": d_v, "d_model": d_model}
        self.factor = factor
        group = site.heads // call.value.shape[1]
        self.bias = None if value_bias is None else value_bias.double().repeat_interleave(group, 0)[:, None]
        compact = factor.new_empty(site.heads, n_key, factor.shape[-1])
        # A few heads at a time in long texts, so that no second copy of all values is held.
        step = max(1, _VALUES_AT_ONCE // (n_key * d_v))
        for start in range(0, site.heads, step):
            some = slice(start, min(start + step, site.heads))
            groups = torch.arange(some.start, some.stop, device=call.value.device) // group
            values = call.value[0, groups].double()
            values = values if self.bias is None else values - self.bias[some]
            torch.matmul(values, factor[some], out=compact[some])
        self._require_finite(compact, "values")
        self.compact = compact
        self.builder = SummaryBuilder(ProjectedValues(compact, d_model), n_query, self._visible(), *types)
        # The last type contains every token without a type of its own.
        self._parked = ParkedBuilder(compact, types[1][:, :-1].any(-1))
        self._kept: list[tuple[Tensor, Tensor]] | None = [] if keep else None

    def run(self, step: int) -> Float[Tensor, "query head d_v"]:
        """Return the attention output, taking the weights ``step`` rows at a time."""
        n_query, d_v = self.counts["n_query"], self.counts["d_v"]
        outputs = self.call.query.new_empty(n_query, self.site.heads, d_v)
        for start in range(0, n_query, step):
            rows = slice(start, min(start + step, n_query))
            output, weights = self.call.attend(rows)
            self._add(rows, weights[0] if weights.dtype == torch.float64 else weights[0].float(), output[0])
            outputs[rows] = output[0]
        return outputs

    def finish(self) -> tuple[AttentionSummary, ParkedAttention]:
        """Return the scalars of all heads, once every row was taken."""
        return self.builder.finish(), self._parked.finish()

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
        """Return raw and effective attention by key, with each row's rank where rows are masked."""
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
            str(MatrixKey(self.text, self.site.layer, head, self.site.kind, name)): tensor[head].cpu().contiguous()
            for head in range(self.site.heads)
            for name, tensor in kept.items()
        }

    def _add(self, rows: slice, weights: Float[Tensor, "head row key"], output: Float[Tensor, "row head d_v"]) -> None:
        outputs = output.transpose(0, 1).double()
        self._require_finite(outputs, "output")
        if self.bias is not None:
            outputs = outputs - weights.double().sum(-1, keepdim=True) * self.bias
        projected = outputs @ self.factor
        self.builder.add(rows, weights, projected)
        self._parked.add(weights, projected)
        if self._kept is not None:
            self._kept.append((weights, self.builder.projector.effective(rows, weights).to(weights.dtype)))

    def _visible(self) -> Visible:
        if self.call.mask is None:
            return self.call.unmasked_pattern()
        visible = self.call.visible()
        return None if visible is None or bool(visible.all()) else visible[0].expand(self.counts["n_query"], -1)

    def _require_finite(self, tensor: Tensor, what: str) -> None:
        # A sum is finite only if every term is, and costs one pass.
        if not bool(torch.isfinite(tensor.sum())):
            raise NumericalError(
                f"text {self.text}, {self.site.kind} layer {self.site.layer}: attention {what} has NaN or infinite "
                "entries. Look for an overflow in half precision (load with --dtype float32) or a broken checkpoint."
            )
