"""Measures taken while the model runs: each attention call of a batch becomes rows of the audit's tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
import torch
from torch import Tensor

from identilens.attention.effective import Visible
from identilens.attention.summary import AttentionSummary, SummaryBuilder
from identilens.attention.token_types import token_types, type_names
from identilens.errors import NumericalError
from identilens.linalg import row_factor
from identilens.models.capture import Lengths
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.layout import Site
from identilens.models.lens import Lens, position_names
from identilens.results.audit import COLUMNS, TOKEN_TYPE_COLUMNS, merge_token_types

Stream = Literal["auto", "always", "never"]

STREAM_LENGTH = 1024
"""With stream="auto", weights of longer texts are never held."""

_BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True)
class AuditSettings:
    """Options of an audit that change what it computes.

    Attributes:
        layers: Layers to audit, counted from 0 within each kind; all when None.
        batch_size: Texts in one forward pass.
        max_length: Cut longer texts to this many tokens.
        stream: Whether to hold the weights of a layer whole ("never"), in blocks of rows ("always"), or in
            blocks for texts longer than `STREAM_LENGTH` ("auto").
        matrices: Keep raw, effective and null attention of every text.
        examples: Keep them for the first so many texts of at most ``example_length`` tokens, for the report.
        example_length: Longest example.
        value_bias: Leave the bias in the values ("in", what the weights mix) or take it out.
    """

    layers: tuple[int, ...] | None = None
    batch_size: int = 8
    max_length: int | None = None
    stream: Stream = "auto"
    matrices: bool = False
    examples: int = 0
    example_length: int = 128
    value_bias: Literal["in", "out"] = "in"


class Runner:
    """Runs parts of a corpus and measures every attention call on the way."""

    def __init__(
        self, lens: Lens, items: list[Item], sites: tuple[Site, ...], settings: AuditSettings, keep: set[int]
    ) -> None:
        self.lens = lens
        self.items = items
        self.sites = sites
        self.settings = settings
        self.keep = keep
        special = getattr(lens.tokenizer, "all_special_tokens", []) if lens.tokenizer is not None else []
        used = {token for item in items for tokens in item.tokens.values() for token in tokens}
        patches = ["[CLS]"] if lens.tokenizer is None else []
        self.names = type_names([token for token in special if token in used] + patches)
        self.factors: dict[int, Tensor] = {}
        self.matrices: dict[str, Tensor] = {}
        self.tokens: dict[int, dict[str, list[str]]] = {}

    def run(self, part: range) -> dict[str, pl.DataFrame]:
        """Return the tables of one part of the corpus."""
        rows: list[tuple] = []
        types: list[pl.DataFrame] = []
        # Texts of like length share a batch, so that little is padded.
        order = sorted(part, key=lambda text: self.items[text].length)
        for start in range(0, len(order), self.settings.batch_size):
            batch = order[start : start + self.settings.batch_size]
            handler = _Handler(self, batch)
            self.lens.run([self.items[text] for text in batch], handler)
            rows += handler.rows
            types += handler.types
        table = pl.DataFrame(rows, schema=COLUMNS, orient="row").sort("text", maintain_order=True)
        return {"table": table, "token_types": merge_token_types(pl.concat(types))}

    def factor(self, index: int, site: Site) -> Tensor:
        """Return the small factor of each head's output projection, computed once a layer."""
        if index not in self.factors:
            self.factors[index] = row_factor(site.output_projection)
        return self.factors[index]


class _Handler:
    """Measures the attention calls of one batch."""

    def __init__(self, runner: Runner, batch: Sequence[int]) -> None:
        self.runner = runner
        self.batch = batch
        self.lengths = Lengths([runner.items[text] for text in batch])
        self.rows: list[tuple] = []
        self.types: list[pl.DataFrame] = []

    def __call__(self, call: AttentionCall) -> Tensor:
        site = self.runner.sites[call.index]
        settings = self.runner.settings
        if settings.layers is not None and site.layer not in settings.layers:
            return call.run_sdpa() if self.runner.lens.runs_fused else call.attend()[0]
        texts = [_TextMeasure(self, call, site, index) for index in range(len(self.batch))]
        outputs = []
        n = call.query.shape[-2]
        for start in range(0, n, step := self._block(call)):
            rows = slice(start, min(start + step, n))
            output, weights = call.attend(rows)
            for text in texts:
                text.add(rows, weights, output)
            outputs.append(output)
        for text in texts:
            text.finish()
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)

    def _block(self, call: AttentionCall) -> int:
        batch, heads, n, _ = call.query.shape
        mode = self.runner.settings.stream
        if mode == "never" or (mode == "auto" and n <= STREAM_LENGTH):
            return n
        return max(16, _BLOCK_BYTES // (8 * batch * heads * call.key.shape[-2]))


class _TextMeasure:
    """Measures one text in one attention call."""

    def __init__(self, handler: _Handler, call: AttentionCall, site: Site, index: int) -> None:
        runner = handler.runner
        self.handler, self.site, self.index = handler, site, index
        self.text = handler.batch[index]
        self.n_query, self.n_key = handler.lengths.of(index, site.kind, call)
        self.d_k, self.d_v = call.query.shape[-1], call.value.shape[-1]
        self.factor = runner.factor(call.index, site)
        values = call.value[index, :, : self.n_key].double()
        self.bias = None
        if runner.settings.value_bias == "out":
            bias = site.value_bias.double()
            values = values - bias[:, None]
            self.bias = bias.repeat_interleave(site.heads // len(bias), 0)[:, None]
        compact = values.repeat_interleave(site.heads // len(values), 0) @ self.factor
        self._require_finite(compact, "values")
        item = runner.items[self.text]
        own = "decoder" if "decoder" in item.tokens and site.kind != "encoder" else "encoder"
        query_tokens = self._tokens(item, own, self.n_query)
        key_tokens = self._tokens(item, "encoder" if site.kind == "cross" else own, self.n_key)
        self.query_types = token_types(query_tokens, runner.names)
        self.builder = SummaryBuilder(
            compact,
            site.projection.get_parameter("weight").numel() // (site.heads * self.d_v),
            self.n_query,
            self._visible(call),
            self.query_types,
            token_types(key_tokens, runner.names),
        )
        self.kept = self.text in runner.keep
        if self.kept:
            runner.tokens.setdefault(self.text, {}).update({own: list(query_tokens)})
            runner.tokens[self.text].setdefault("encoder" if site.kind == "cross" else own, list(key_tokens))
        self.raw: list[Tensor] = []
        self.effective: list[Tensor] = []

    def add(self, rows: slice, weights: Tensor, output: Tensor) -> None:
        """Take the text's share of a block of rows."""
        count = min(rows.stop, self.n_query) - rows.start
        if count <= 0:
            return
        own = slice(rows.start, rows.start + count)
        weights = weights[self.index, :, :count, : self.n_key]
        weights = weights if weights.dtype == torch.float64 else weights.float()
        outputs = output[self.index, :count].transpose(0, 1).double()
        self._require_finite(outputs, "output")
        if self.bias is not None:
            outputs = outputs - weights.double().sum(-1, keepdim=True) * self.bias
        self.builder.add(own, weights, outputs @ self.factor)
        if self.kept:
            self.raw.append(weights.clone())
            self.effective.append(self.builder.projector.effective(own, weights).to(weights.dtype))

    def finish(self) -> None:
        """Hand the rows of the tables over, and the matrices where they are kept."""
        summary = self.builder.finish()
        counts = [self.text, self.site.layer, self.site.kind, self.n_query, self.n_key, self.d_k, self.d_v]
        self.handler.rows += table_rows(summary, counts)
        self.handler.types.append(self._received(summary))
        if self.kept:
            self._keep_matrices()

    def _keep_matrices(self) -> None:
        raw, effective = torch.cat(self.raw, 1), torch.cat(self.effective, 1)
        ranks = sizes = None
        if self.builder.visible is not None:
            ranks, sizes = self.builder.projector.row_ranks(), self.builder.projector.row_sizes()
        for head in range(len(raw)):
            key = f"text{self.text}.layer{self.site.layer}.head{head}.{self.site.kind}"
            kept = {"raw": raw[head], "effective": effective[head], "null": raw[head] - effective[head]}
            if ranks is not None and sizes is not None:
                kept |= {"row_rank": ranks[head], "row_nullity": sizes - ranks[head]}
            self.handler.runner.matrices |= {f"{key}.{name}": tensor.cpu() for name, tensor in kept.items()}

    def _received(self, summary: AttentionSummary) -> pl.DataFrame:
        names = self.handler.runner.names
        queries = self.query_types.sum(0)
        heads, used = len(summary.rank), [index for index, count in enumerate(queries.tolist()) if count]
        raw, effective = summary.raw_received.cpu(), summary.effective_received.cpu()
        cells = [(head, query, key) for head in range(heads) for query in used for key in range(len(names))]
        index = torch.tensor(cells).T
        per_query = queries[index[1]]
        return pl.DataFrame(
            {
                "kind": [self.site.kind] * len(cells),
                "layer": [self.site.layer] * len(cells),
                "head": index[0].numpy(),
                "query_type": [names[query] for _, query, _ in cells],
                "key_type": [names[key] for _, _, key in cells],
                "queries": per_query.long().numpy(),
                "raw": (raw[*index] / per_query).numpy(),
                "effective": (effective[*index] / per_query).numpy(),
            },
            schema=TOKEN_TYPE_COLUMNS,
        )

    def _tokens(self, item: Item, sequence: str, positions: int) -> tuple[str, ...]:
        tokens = item.tokens.get(sequence, ())
        return tokens if len(tokens) == positions else position_names(self.handler.runner.lens.model.config, positions)

    def _visible(self, call: AttentionCall) -> Visible:
        if call.mask is None:
            return call.unmasked_pattern()
        visible = call.visible()
        if visible is None:
            return None
        own = visible[self.index, : self.n_query, : self.n_key].expand(self.n_query, self.n_key)
        return None if bool(own.all()) else own

    def _require_finite(self, tensor: Tensor, what: str) -> None:
        if not bool(torch.isfinite(tensor).all()):
            raise NumericalError(
                f"text {self.text}, {self.site.kind} layer {self.site.layer}: attention {what} has NaN or infinite "
                "entries. Look for an overflow in half precision (load with --dtype float32) or a broken checkpoint."
            )


def table_rows(summary: AttentionSummary, counts: Sequence[Any]) -> list[tuple]:
    """Return one row of the audit table for each head; an undefined correlation becomes a missing value."""
    text, layer, kind, n_query, n_key, d_k, d_v = counts
    measures = zip(
        summary.rank.tolist(),
        summary.nullity.tolist(),
        summary.simplex_nullity.tolist(),
        summary.null_share.tolist(),
        (None if value != value else value for value in summary.pearson.tolist()),
        summary.reconstruction_error.tolist(),
        strict=True,
    )
    return [(text, layer, head, kind, n_query, n_key, d_k, d_v, *values) for head, values in enumerate(measures)]
